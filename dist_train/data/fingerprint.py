"""Is this the data that the position was counted in? Compared field by field, both values named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import xxhash

from dist_train.data.permutation import PERMUTATION_VERSION
from dist_train.errors import CheckpointError

_MENDS = {
    "n": "give the dataset that the checkpoint was made with",
    "dataset_id": "give the dataset that the checkpoint was made with",
    "seed": "give the seed that the checkpoint was made with",
    "shuffle": "give the same shuffle as the checkpoint",
    "permutation_version": "use the release of dist-train that wrote the checkpoint",
    "fingerprint": "give the dataset that the checkpoint was made with",
}


def fingerprint(n: int, dataset_id: str) -> str:
    """Hex of what fixes the order besides seed and epoch: length, dataset id, permutation version."""
    facts = {"dataset_id": dataset_id, "n": n, "permutation_version": PERMUTATION_VERSION}
    return xxhash.xxh3_128_hexdigest(json.dumps(facts, sort_keys=True).encode())


def refuse_other_data(saved: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Compare the fields that must be equal.

    Raises:
        CheckpointError: one differs or is missing; the message names both values.
    """
    for name, mend in _MENDS.items():
        if name not in ours:
            continue
        if name not in saved:
            raise CheckpointError(
                f"the loader's state has no {name!r}: it holds {sorted(saved)}",
                mend="give load_state_dict what state_dict returned",
            )
        if saved[name] != ours[name]:
            raise CheckpointError(
                f"{name} was {saved[name]!r} when the position was saved and is {ours[name]!r} now",
                cause="the rest of the epoch would repeat some samples and miss others",
                mend=mend,
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
            mend="give load_state_dict what state_dict returned",
        )
    return value
