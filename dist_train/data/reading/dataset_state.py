"""A data set's own `state_dict` and `load_state_dict`, kept with the loader's position."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dist_train.data.reading.same_sample import same_sample
from dist_train.errors import CheckpointError, ConfigError

logger = logging.getLogger(__name__)
KEY = "dataset"


def is_stateful(dataset: Any) -> bool:
    """Whether it has both methods, as torchdata's StatefulDataLoader asks for them."""
    return all(callable(getattr(dataset, name, None)) for name in ("state_dict", "load_state_dict"))


def saved_state(dataset: Any) -> dict[str, Any]:
    """What the loader's state holds of the data set's."""
    return {KEY: copy.deepcopy(dataset.state_dict())} if is_stateful(dataset) else {}


def restore_state(dataset: Any, saved: Mapping[str, Any]) -> None:
    """Give the data set its part of a loader's state.

    Raises:
        CheckpointError: the state has such a part, and this data set takes none.
    """
    name = type(dataset).__name__
    if KEY in saved:
        if not is_stateful(dataset):
            raise CheckpointError(
                f"the position was saved with a state of the data set, and {name} has no load_state_dict",
                hint="give the dataset that the checkpoint was made with",
            )
        dataset.load_state_dict(saved[KEY])
    elif is_stateful(dataset):
        logger.warning("the checkpoint holds no state of %s: it stays as it was made", name)


class UnchangedState:
    """Refuses a data set whose state changes while it is read, where that state could not be saved."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Raise ConfigError if reading inside the block changes the state."""
        before = copy.deepcopy(self.dataset.state_dict())
        yield
        if not same_sample(before, self.dataset.state_dict()):
            raise ConfigError(
                f"reading changed the state of {type(self.dataset).__name__}",
                cause="each rank and worker has a copy of its own, which no checkpoint of another number of "
                "them could continue",
                hint="change the state in the loop and not in __getitem__; one process with workers=0 may",
            )
