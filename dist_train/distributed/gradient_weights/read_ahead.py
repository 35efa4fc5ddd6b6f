"""Whether a loop reads batches ahead of its training: by the order of reads and backward passes."""

from __future__ import annotations

import threading

from dist_train.errors import UsageError


class ReadAhead:
    """The order of batches handed out, first uses and backward passes in one loader iteration.

    A plain loop uses each batch before it reads the next one. An iterator that reads ahead begins with
    more than one batch and then reads one for each that is used.
    """

    def __init__(self) -> None:
        # The most batches that were ever handed out before one of them was used.
        self.depth = 1
        self._unused = 0
        self._thread = 0
        # A group: batches handed out one after the other, then their backward passes.
        self._first: tuple[int, int] | None = None
        self._batches = 0
        self._backwards = 0
        self._ahead = False

    def hand_out(self, thread: int) -> None:
        """A batch was handed out to a thread."""
        self._thread = thread
        self._unused += 1
        if not self._backwards:
            self._batches += 1
            return
        self._end_group()
        self._batches, self._backwards = 1, 0

    def use(self) -> None:
        """A forward or backward pass: what was handed out is in use."""
        self.depth = max(self.depth, self._unused)
        self._unused = 0

    def backward(self) -> None:
        """A backward pass."""
        self.use()
        self._backwards += 1

    def refuse_position(self, ended: bool) -> None:
        """Raise UsageError if the position counts batches that were not trained on.

        Args:
            ended: the iteration has ended.
        """
        if self._backwards or self._first:
            in_first = self._first is None and 0 < self._backwards < self._batches
            self._compare()
            if in_first or (self._ahead and not ended):
                raise _skips("batches are read ahead of the one that is trained on")
        if not ended and self._thread and self._thread != threading.get_ident():
            raise _skips("batches are read by another thread than the one that saves")

    def _end_group(self) -> None:
        self._compare()
        if self._first is None:
            self._first = (self._batches, self._backwards)

    def _compare(self) -> None:
        # Fewer batches than at the beginning, and as many backward passes: the beginning read ahead.
        if self._first is not None:
            batches, backwards = self._first
            self._ahead |= self._batches < batches and self._backwards == backwards


def _skips(cause: str) -> UsageError:
    return UsageError(
        "the loader's position counts a batch that has not been trained on: a resume would skip it",
        cause=cause,
        hint="iterate the loader directly, `for batch in loader:`, and let it read ahead: "
        "dt.loader(…, workers=4, device=run.device); "
        "batches that the loop leaves out: leave them out of the data set",
    )
