"""A rank's output, cut into what its log keeps and what is shown.

The log and rank 0's stdout get every byte as it came, in whole lines where lines come. Elsewhere lines are
shown behind a prefix: of a line that was overwritten by carriage returns (a progress bar) its last state,
and of a line that has not ended its present state, now and then.
"""

from __future__ import annotations

_CUT_BYTES = 64 * 1024
_WHOLE_LINE_S = 0.5  # how long the end of a line is waited for, before its begin is kept and passed on
_UNFINISHED_S = 1.0  # an unfinished line is shown after this time, and then
_UNFINISHED_AGAIN_S = 5.0  # as often as this, if it has changed


class OutputStream:
    """What has come from one stream and is not passed on yet.

    `feed` and `late` return bytes for the log; `feed` and `finish` add to `lines`, which the caller takes.

    Args:
        cut_bytes: a longer line is passed on in parts.
    """

    def __init__(self, cut_bytes: int = _CUT_BYTES) -> None:
        self._cut_bytes = cut_bytes
        self.lines: list[bytes] = []
        self._rest = b""  # of the unfinished line, from its last carriage return on
        self._passed = 0  # bytes of it that the log has
        self._overwritten = b""  # the last state that a carriage return has ended
        self._rest_since = 0.0
        self._line_since: float | None = None
        self._shown = b""
        self._shown_at = float("-inf")

    def feed(self, chunk: bytes, now: float) -> bytes:
        """Take what was read at this time; return the bytes that are whole lines or long enough."""
        if len(self._rest) == self._passed:
            self._rest_since = now
        content = self._rest + chunk
        whole, newline, rest = content.rpartition(b"\n")
        if newline:
            self._end_lines(whole.split(b"\n"))
        if rest and self._line_since is None:
            self._line_since = now
        # A carriage return at the very end may be half of \r\n.
        head, carriage_return, unfinished = rest[:-1].rpartition(b"\r")
        if carriage_return:
            self._overwritten = last_state(head) or self._overwritten
            rest = unfinished + rest[-1:]
        if len(rest) >= self._cut_bytes:
            self._end_lines([rest])
            rest = b""
        passed = content[self._passed : len(content) - len(rest)]
        if len(rest) < len(content):
            self._rest_since, self._passed = now, max(0, self._passed - (len(content) - len(rest)))
        self._rest = rest
        return passed

    def late(self, now: float) -> bytes:
        """Return the begin of a line whose end has not come for a while."""
        if len(self._rest) == self._passed or now - self._rest_since < _WHOLE_LINE_S:
            return b""
        passed, self._passed = self._rest[self._passed :], len(self._rest)
        self._rest_since = now
        return passed

    def finish(self) -> bytes:
        """Take the unfinished line as ended; return its bytes that were not passed on."""
        passed, state = self._rest[self._passed :], self.unfinished
        self._rest, self._passed = b"", 0
        if state:
            self._end_lines([state])
        return passed

    @property
    def unfinished(self) -> bytes:
        """The present state of a line that has not ended."""
        return last_state(self._rest) or self._overwritten

    def due(self, now: float) -> bytes:
        """Return the state of an unfinished line if it is to be shown now."""
        if self._line_since is None or now - self._line_since < _UNFINISHED_S:
            return b""
        if now - self._shown_at < _UNFINISHED_AGAIN_S:
            return b""
        state = self.unfinished
        if not state.strip() or state == self._shown:
            return b""
        self._shown, self._shown_at = state, now
        return state

    def _end_lines(self, lines: list[bytes]) -> None:
        # The first of them may only end a bar whose last state has come before.
        first = last_state(lines[0]) or self._overwritten
        self.lines += [first, *map(last_state, lines[1:])]
        self._overwritten, self._line_since, self._shown = b"", None, b""


def last_state(line: bytes) -> bytes:
    """What a terminal shows of a line with carriage returns."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]
