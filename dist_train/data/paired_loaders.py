"""Refuse two shuffled loaders of one order read side by side: sample i would always meet sample i."""

from __future__ import annotations

import weakref

from dist_train.errors import ConfigError

_in_use: weakref.WeakSet[OrderInUse] = weakref.WeakSet()


class OrderInUse:
    """The order of one shuffled loader, and the place in it that was handed out last.

    Args:
        order: what the order and its steps depend on: (samples, batch size, seed, dataset id).
        id_given: the dataset id was an argument: two loaders with one id are paired on purpose.
    """

    def __init__(self, order: tuple[int, int, int, str], id_given: bool) -> None:
        self._order = order
        self._id_given = id_given
        self._place: tuple[int, int] | None = None
        self._met: weakref.ref[OrderInUse] | None = None
        _in_use.add(self)

    def close(self) -> None:
        """End an iteration: its place meets no other loader's any more."""
        self._place = None

    def hand_out(self, epoch: int, step: int) -> None:
        """Note a place; at the second one running where the same other loader stands, refuse.

        Raises:
            ConfigError: the two loaders are iterated side by side.
        """
        self._place = (epoch, step)
        if len(_in_use) == 1:
            return
        met = next((other for other in _in_use if self._meets(other)), None)
        if met is not None and self._met is not None and self._met() is met:
            raise _paired(*self._order)
        self._met = None if met is None else weakref.ref(met)

    def _meets(self, other: OrderInUse) -> bool:
        return (
            other is not self
            and other._place == self._place
            and other._order == self._order
            and not (other._id_given and self._id_given)
        )


def _paired(samples: int, batch_size: int, seed: int, dataset_id: str) -> ConfigError:
    return ConfigError(
        f"two loaders of {samples} samples are read side by side in one order: "
        f"seed {seed}, dataset_id {dataset_id!r}",
        cause="sample i of one meets sample i of the other in every epoch, as if they were not shuffled",
        hint='dt.loader(a, batch_size, dataset_id="a") and dt.loader(b, batch_size, dataset_id="b"); '
        "the same dataset_id on both pairs them on purpose",
    )
