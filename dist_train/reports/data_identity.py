"""Which data a run reads in which order, as its newest checkpoint says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dist_train.rundir import RunDir
from dist_train.rundir.committed_steps import committed_steps
from dist_train.rundir.records import read_json
from dist_train.rundir.step_names import step_name

_KEYS = ("n", "seed", "shuffle", "dataset_id", "permutation_version", "batch_size")
# A loader's entry with another key than these has an order of its own: a sampler's, or that of shards.
_PLAIN = {*_KEYS, "fingerprint", "epoch", "samples_in_epoch", "samples_total", "epoch_complete"}


@dataclass(frozen=True)
class DataIdentity:
    """What determines the samples of each step.

    Args:
        fingerprint: of the data set's content.
        permuted: the order is the loader's own permutation, or the data set's.
    """

    n: int
    seed: int
    shuffle: bool
    dataset_id: str
    permutation_version: int
    batch_size: int
    fingerprint: str | None
    permuted: bool

    def steps_per_epoch(self, drop_last: bool) -> int:
        """Steps of one epoch; without `drop_last` the last may have fewer samples."""
        return self.n // self.batch_size if drop_last else -(-self.n // self.batch_size)


def read_data_identity(run: RunDir) -> DataIdentity | None:
    """Read it from the newest checkpoint; None without one, and where several loaders or none are in it."""
    for step in reversed(committed_steps(run)):
        found = _loaders(run, step)
        if len(found) == 1:
            return _identity(found[0])
        return None
    return None


def _loaders(run: RunDir, step: int) -> list[dict[str, Any]]:
    try:
        state = read_json(run.checkpoints / step_name(step) / "state.json") or {}
    except (OSError, ValueError):
        return []
    entries = state.get("entries")
    contents = [
        entry["content"]
        for entry in (entries.values() if isinstance(entries, dict) else ())
        if isinstance(entry, dict) and isinstance(entry.get("content"), dict)
    ]
    return [content for content in contents if set(_KEYS) <= set(content)]


def _identity(loader: dict[str, Any]) -> DataIdentity | None:
    if not isinstance(loader["n"], int) or not isinstance(loader["batch_size"], int) or loader["n"] < 1:
        return None
    return DataIdentity(
        **{key: loader[key] for key in _KEYS},
        fingerprint=loader.get("fingerprint"),
        permuted=set(loader) <= _PLAIN,
    )
