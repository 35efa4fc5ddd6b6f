"""Output of a follower, which waits for no reader that has stopped: the job's end is seen all the same."""

from __future__ import annotations

import sys

from dist_train.jobs.terminal_writer import TerminalWriter, same_file

# At the end, for a reader that takes nothing.
STOPPED_READER_S = 5.0


class FollowOutput:
    """Lines of the log on stdout, notices on stderr."""

    def __init__(self) -> None:
        self._out, self._err = sys.stdout, sys.stderr
        self._out.flush()
        self._err_writer = TerminalWriter(self._note_dropped, self.notice)
        one_terminal = same_file(self._out, self._err)
        self._out_writer = (
            self._err_writer if one_terminal else TerminalWriter(self._note_dropped, self.notice)
        )

    @property
    def is_behind(self) -> bool:
        """Whether the reader is slow, but takes lines: better to read the log later than to drop some."""
        return self._out_writer.is_behind

    def line(self, text: str) -> None:
        """Print a line of the log."""
        self._out_writer.put(self._out, f"{text}\n".encode(errors="replace"))

    def notice(self, text: str) -> None:
        """Print what dist-train itself says; it is never dropped."""
        self._err_writer.put(self._err, f"[dist-train] {text}\n".encode(errors="replace"), always=True)

    def close(self) -> None:
        """Wait until all is written, except for a reader that has stopped; say what was not."""
        if left := self._out_writer.close(STOPPED_READER_S):
            self._note_dropped(left)
        self._err_writer.close(STOPPED_READER_S)

    def _note_dropped(self, count: int) -> None:
        self.notice(
            f"{count} lines of the log were not shown: the terminal's reader had stopped; "
            "`dist-train logs` reads them again"
        )
