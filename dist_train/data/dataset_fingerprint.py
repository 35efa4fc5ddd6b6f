"""Compare the data set with the one that a saved position was counted in."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import xxhash

from dist_train.data.permutation import PERMUTATION_VERSION
from dist_train.errors import CheckpointError

logger = logging.getLogger(__name__)
_HINTS = {
    "n": "give the dataset that the checkpoint was made with",
    "dataset_id": "give the dataset that the checkpoint was made with",
    "seed": "give the seed that the checkpoint was made with",
    "shuffle": "give the same shuffle as the checkpoint",
    "permutation_version": "use the release of dist-train that wrote the checkpoint",
    "interleave": "give ShardedStream the interleave of the checkpoint",
    "shuffle_buffer": "give ShardedStream the shuffle_buffer of the checkpoint",
    "fingerprint": "give the dataset that the checkpoint was made with",
}


def fingerprint(n: int, dataset_id: str) -> str:
    """Hash what the order depends on besides seed and epoch: length, dataset id, permutation version."""
    facts = {"dataset_id": dataset_id, "n": n, "permutation_version": PERMUTATION_VERSION}
    return xxhash.xxh3_128_hexdigest(json.dumps(facts, sort_keys=True).encode())


def refuse_other_data(saved: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Refuse a state whose fields differ from ours.

    Raises:
        CheckpointError: one differs or is missing; the message names both values.
    """
    for name, hint in _HINTS.items():
        if name not in ours:
            continue
        if name not in saved:
            raise CheckpointError(
                f"the loader's state has no {name!r}: it holds {sorted(saved)}",
                hint="give load_state_dict what state_dict returned",
            )
        if saved[name] != ours[name]:
            raise CheckpointError(
                f"{name} was {saved[name]!r} when the position was saved and is {ours[name]!r} now",
                cause="the rest of the epoch would repeat some samples and miss others",
                hint=hint,
            )


def refuse_other_steps(saved_batch_size: int, batch_size: int, samples: int) -> None:
    """Refuse a position that lies in the middle of a step of the present batch_size.

    Raises:
        CheckpointError: it does; the message names both batch sizes.
    """
    if saved_batch_size == batch_size:
        return
    if samples % batch_size:
        raise CheckpointError(
            f"batch_size was {saved_batch_size} at the save and is {batch_size} now",
            cause=f"position {samples} lies in the middle of a step of {batch_size}",
            hint=f"go on with batch_size {saved_batch_size}, or change it at an epoch's end",
        )
    logger.info("batch_size was %s at the save and is %s now", saved_batch_size, batch_size)


def refuse_other_order(saved: str, ours: str, epoch: int) -> None:
    """Refuse a position inside an epoch that a sampler orders otherwise now.

    Args:
        saved: digest of the epoch's order at the save; empty without a sampler.
        ours: the present one.

    Raises:
        CheckpointError: they differ.
    """
    if saved != ours:
        raise CheckpointError(
            f"the order of epoch {epoch} was {saved or 'no sampler'} at the save and is "
            f"{ours or 'no sampler'} now",
            cause="with another sampler, or one made from other data (weights, lengths), the rest of the "
            "epoch would repeat some samples and miss others",
            hint="give the sampler that the checkpoint was made with; at an epoch's end it may change",
        )


def whole_number(saved: Mapping[str, Any], name: str) -> int:
    """`saved[name]` as an int that is not negative.

    Raises:
        CheckpointError: it is missing or something else.
    """
    value = saved.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CheckpointError(
            f"the loader's state has {name}={value!r}, which is not a whole number from 0 up",
            hint="give load_state_dict what state_dict returned",
        )
    return value
