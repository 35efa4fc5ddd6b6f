"""A micro-batch of the config's own data, as a rank reads it; not for training."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset, default_collate

from dist_train.config.schema import RunConfig
from dist_train.errors import NotFoundError
from dist_train.trainer.build_components import make_collate
from dist_train.trainer.component_factory import make

# Samples that are read; a larger batch repeats them.
_MOST_READ = 32


class SampleBatches:
    """Batches of any size, from the first samples of the training data.

    Raises:
        NotFoundError: the data has no sample. The data set's own errors are not caught.
    """

    def __init__(self, config: RunConfig) -> None:
        dataset = make(config.data.train, "data")
        self._samples = list(_first_samples(dataset, min(_MOST_READ, config.data.batch_size)))
        if not self._samples:
            raise NotFoundError(f"{config.data.train.target} has no sample")
        self._collate: Callable[[list[Any]], Any] = make_collate(config) or default_collate

    def of_size(self, count: int) -> Any:
        """A batch of so many samples."""
        return self._collate([self._samples[i % len(self._samples)] for i in range(count)])


def _first_samples(dataset: Any, count: int) -> Any:
    if isinstance(dataset, IterableDataset):
        return islice(iter(dataset), count)
    return (dataset[i] for i in range(min(count, len(dataset))))
