"""Which tests a worker is given next."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest

# Consecutive tests of a module that a worker is given at once, at most: it makes the module's fixtures once.
MOST = 8
# Of what is left, a worker is given one part in this many times the number of workers: all end together.
PARTS = 32


class ItemQueue:
    """Numbers of tests in their order; those of one xdist_group are given to one worker.

    Args:
        items: all tests.
        workers: how many take from it.
    """

    def __init__(self, items: Sequence[pytest.Item], workers: int) -> None:
        self._modules = [item.nodeid.partition("::")[0] for item in items]
        self._groups = [_group(item) for item in items]
        self._left = deque(range(len(items)))
        self._share = PARTS * workers

    def __len__(self) -> int:
        return len(self._left)

    def take(self) -> list[int]:
        """Return the next tests for one worker; none when none are left."""
        if not self._left:
            return []
        first = self._left[0]
        group = self._groups[first]
        if group is not None:
            taken = [number for number in self._left if self._groups[number] == group]
        else:
            most = max(1, min(MOST, len(self._left) // self._share))
            taken = []
            for number in self._left:
                same = self._modules[number] == self._modules[first] and self._groups[number] is None
                if not same or len(taken) == most:
                    break
                taken.append(number)
        gone = set(taken)
        self._left = deque(number for number in self._left if number not in gone)
        return taken

    def give_back(self, numbers: Sequence[int]) -> None:
        """Tests that a worker which has ended did not begin come first."""
        self._left.extendleft(reversed(numbers))


def _group(item: pytest.Item) -> str | None:
    marker = item.get_closest_marker("xdist_group")
    if marker is None:
        return None
    return str(marker.args[0] if marker.args else marker.kwargs["name"])
