"""How much of the step this rank holds: what makes a plain loop exact on uneven steps."""

from __future__ import annotations


class ShareBox:
    """This rank's samples (`local`) of the step's (`total`); both 0 while no loader has a batch out.

    A loop over a loader computes the MEAN of its own share, and ddp averages those means with
    equal weight; multiplying the gradient by `weight` makes the result the mean of the step.
    """

    def __init__(self) -> None:
        self.local = 0
        self.total = 0
        self._slots: list[ShareSlot] = []

    def weight(self, world_size: int) -> float:
        """local * world_size / total, or 1.0 when nothing is set."""
        return self.local * world_size / self.total if self.total else 1.0

    def open(self) -> ShareSlot:
        """A place for one iteration. The one that set last counts, until it is closed.

        An evaluation inside a training step has its own, so that the outer share is there again
        after it.
        """
        return ShareSlot(self)


class ShareSlot:
    """One iteration's place in a ShareBox."""

    def __init__(self, box: ShareBox) -> None:
        self._box = box
        self._values = (0, 0)

    def set(self, local: int, total: int) -> None:
        """The batch handed out now holds `local` of the step's `total` samples."""
        self._values = (local, total)
        slots = self._box._slots
        if self in slots:
            slots.remove(self)
        slots.append(self)
        self._box.local, self._box.total = self._values

    def close(self) -> None:
        """This iteration is over; what was set before it counts again."""
        slots = self._box._slots
        if self in slots:
            slots.remove(self)
            self._box.local, self._box.total = slots[-1]._values if slots else (0, 0)
