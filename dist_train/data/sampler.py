"""A drop-in for torch's DistributedSampler: same arguments and padding, O(1) memory, resumable."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sized
from typing import Any

import numpy as np
import torch.distributed as torch_dist
from torch.utils.data import Sampler

from dist_train.data.dataset_fingerprint import fingerprint, refuse_other_data, whole_number
from dist_train.data.permutation import PERMUTATION_VERSION, Permutation
from dist_train.distributed.run import current
from dist_train.env import RankInfo
from dist_train.errors import CheckpointError

logger = logging.getLogger(__name__)
_CHUNK = 4096


class DistributedSampler(Sampler[int]):
    """Indices of one replica. Every replica gets equally many: as torch's sampler, it repeats the
    first samples of the epoch at its end, or with `drop_last` omits the last ones. `dist_train.loader`
    does neither.

    `set_epoch(e)` before each epoch, as with torch's. To resume: save
    `state_dict(consumed=...)`, `load_state_dict` it before the loop, call `set_epoch` with the
    saved epoch (or not at all); the next iteration gives the rest of that epoch, also at another
    number of replicas.

    Args:
        dataset: with a length; its attribute `dataset_id`, if any, is part of the order's key.
        num_replicas: default the process group's size, else from the launcher's environment.
        rank: default likewise.
        shuffle: False keeps the dataset's order.
        seed: 0 <= seed < 2**128, the same on all ranks.
        drop_last: drop the tail instead of repeating the beginning.

    Raises:
        ValueError: rank is not one of num_replicas.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if num_replicas is None or rank is None:
            own_rank, own_size = _rank_and_size()
            num_replicas = own_size if num_replicas is None else num_replicas
            rank = own_rank if rank is None else rank
        if rank >= num_replicas or rank < 0:
            raise ValueError(f"Invalid rank {rank}, rank should be in the interval [0, {num_replicas - 1}]")
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.epoch = 0
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.dataset_id = str(getattr(dataset, "dataset_id", ""))
        self.position = 0
        self._log_padding()

    @property
    def num_samples(self) -> int:
        """Samples of this replica in the next iteration: fewer than an epoch's after a resume."""
        remaining = len(self.dataset) - self.position
        return remaining // self.num_replicas if self.drop_last else -(-remaining // self.num_replicas)

    @property
    def total_size(self) -> int:
        """num_samples of all replicas."""
        return self.num_samples * self.num_replicas

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        n, start, count = len(self.dataset), self.position, self.num_samples
        epoch = self.epoch
        order = Permutation(n, self.seed, epoch, self.dataset_id) if self.shuffle and count else None
        for at in range(0, count, _CHUNK):
            turns = np.arange(at, min(at + _CHUNK, count), dtype=np.int64)
            positions = (start + self.rank + turns * self.num_replicas) % n
            ids = positions if order is None else order[positions]
            yield from ids.tolist()
        if self.epoch == epoch:
            self.position = 0  # only the first iteration is partial: the next one is a whole epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which selects the order. A change of epoch starts at its beginning."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.position = 0

    def state_dict(self, *, consumed: int) -> dict[str, Any]:
        """The position as JSON values.

        Args:
            consumed: samples of this epoch, over ALL replicas and from its beginning, whose
                optimizer step is done. The sampler cannot know it: a DataLoader prefetches.
        """
        n = len(self.dataset)
        if consumed < 0:
            raise CheckpointError(f"consumed={consumed} is negative", hint="count the samples of done steps")
        ended = consumed >= (n - n % self.num_replicas if self.drop_last else n)
        epoch, samples = (self.epoch + 1, 0) if ended else (self.epoch, consumed)
        return {"epoch": epoch, "samples_in_epoch": samples, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict`, also one written with another number of replicas.

        Raises:
            CheckpointError: it belongs to other data or another order; both values are named.
        """
        refuse_other_data(state, self._identity())
        epoch, samples = whole_number(state, "epoch"), whole_number(state, "samples_in_epoch")
        if samples >= max(1, len(self.dataset)):
            raise CheckpointError(
                f"position {samples} does not exist in {len(self.dataset)} samples",
                hint="give load_state_dict what state_dict returned",
            )
        self.epoch, self.position = epoch, samples

    def _identity(self) -> dict[str, Any]:
        n = len(self.dataset)
        return {
            "n": n,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "dataset_id": self.dataset_id,
            "permutation_version": PERMUTATION_VERSION,
            "fingerprint": fingerprint(n, self.dataset_id),
        }

    def _log_padding(self) -> None:
        n, uneven = len(self.dataset), len(self.dataset) % self.num_replicas
        if not uneven or self.rank:
            return
        logger.info(
            "%s samples over %s replicas: %s %s per epoch, as torch's sampler does (dist_train.loader: none)",
            n,
            self.num_replicas,
            uneven if self.drop_last else self.num_replicas - uneven,
            "left out" if self.drop_last else "repeated",
        )


def _rank_and_size() -> tuple[int, int]:
    run = current()
    if run is not None:
        return run.place.data_rank, run.place.data_size
    if torch_dist.is_available() and torch_dist.is_initialized():
        return torch_dist.get_rank(), torch_dist.get_world_size()
    info = RankInfo.from_env()
    return info.rank, info.world_size
