"""The first record in which two runs differ, what of it differs, and in which rank."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dist_train.rundir import RunDir
from dist_train.rundir.committed_steps import committed_steps
from dist_train.rundir.metrics_file import HASHED_FIELDS
from dist_train.rundir.records import read_json, read_lines
from dist_train.rundir.step_names import step_name

# Recorded since later versions: not compared where one of the runs has none.
DIGEST_FIELDS = ("gradient_number", "rank_losses")
Place = tuple[int, str]


@dataclass(frozen=True)
class FieldDifference:
    """A field of the first records that differ; floats are compared to the bit."""

    name: str
    a: Any
    b: Any

    @property
    def relative(self) -> float | None:
        """By how much of the larger one two numbers differ; None for other values, and for nan."""
        if any(isinstance(one, bool) or not isinstance(one, int | float) for one in (self.a, self.b)):
            return None
        largest = max(abs(self.a), abs(self.b))
        found = abs(self.a - self.b) / largest if largest else 0.0
        return found if found == found else None


@dataclass(frozen=True)
class RunDifference:
    """Where two runs part.

    Args:
        compared: records of one step and kind that both have.
        step, kind: of the first record that differs; None: none does.
        last_equal: the last step before it whose records are equal.
        fields: what differs in it.
        ranks: those whose own loss differs in it; None where that is not recorded.
        equal_weights, other_weights: steps of checkpoints that both have, by whether the weights are equal.
    """

    compared: int
    only_a: int
    only_b: int
    step: int | None = None
    kind: str | None = None
    last_equal: int | None = None
    fields: tuple[FieldDifference, ...] = ()
    ranks: tuple[int, ...] | None = None
    equal_weights: tuple[int, ...] = ()
    other_weights: tuple[int, ...] = ()

    @property
    def differs(self) -> bool:
        """Whether the runs part in what is recorded."""
        return self.step is not None or bool(self.other_weights)


def diff_runs(a: RunDir, b: RunDir) -> RunDifference:
    """Compare the last record of each step, and the weights of checkpoints.

    Raises:
        OSError: a file is there and cannot be read.
    """
    in_a, in_b = _digests(a.metrics), _digests(b.metrics)
    # The training record of a step comes before its evaluation.
    both = sorted(in_a.keys() & in_b.keys(), key=lambda place: (place[0], place[1] != "train", place[1]))
    equal, other = _weights(a, b)
    found = RunDifference(
        compared=len(both),
        only_a=len(in_a) - len(both),
        only_b=len(in_b) - len(both),
        equal_weights=equal,
        other_weights=other,
    )
    for place in both:
        if _differ(in_a[place], in_b[place]):
            before = [step for step, _ in both if step < place[0]]
            found = replace(found, step=place[0], kind=place[1], last_equal=before[-1] if before else None)
            return _with_fields(found, _record(a.metrics, place), _record(b.metrics, place))
    return found


def _with_fields(found: RunDifference, a: dict[str, Any], b: dict[str, Any]) -> RunDifference:
    names = [*HASHED_FIELDS, *(name for name in DIGEST_FIELDS if name in a and name in b)]
    flat_a, flat_b = _flat(a, names), _flat(b, names)
    fields = tuple(
        FieldDifference(name, flat_a.get(name), flat_b.get(name))
        for name in dict.fromkeys([*flat_a, *flat_b])
        if name != "rank_losses" and _exact(flat_a.get(name)) != _exact(flat_b.get(name))
    )
    return replace(found, fields=fields, ranks=_ranks(a.get("rank_losses"), b.get("rank_losses")))


def _ranks(a: Any, b: Any) -> tuple[int, ...] | None:
    """Ranks whose losses differ; None unless both runs have the same number of ranks."""
    if not isinstance(a, list) or not isinstance(b, list) or len(a) != len(b):
        return None
    return tuple(
        rank for rank, (one, other) in enumerate(zip(a, b, strict=True)) if _exact(one) != _exact(other)
    )


def _digests(path: Path) -> dict[Place, tuple[int, tuple[int | None, ...]]]:
    """Of the last record of each (step, kind) a hash of its figures, and of each digest that it has."""
    found: dict[Place, tuple[int, tuple[int | None, ...]]] = {}
    for record in read_lines(path):
        place = _place(record)
        if place is not None:
            hashed = {name: _exact(record[name]) for name in HASHED_FIELDS if name in record}
            digests = tuple(_hash(_exact(record[name])) if name in record else None for name in DIGEST_FIELDS)
            found[place] = (_hash(hashed), digests)
    return found


def _differ(a: tuple[int, tuple[int | None, ...]], b: tuple[int, tuple[int | None, ...]]) -> bool:
    if a[0] != b[0]:
        return True
    return any(None not in pair and pair[0] != pair[1] for pair in zip(a[1], b[1], strict=True))


def _record(path: Path, place: Place) -> dict[str, Any]:
    """The last record of that step and kind."""
    found: dict[str, Any] = {}
    for record in read_lines(path):
        if _place(record) == place:
            found = record
    return found


def _place(record: Mapping[str, Any]) -> Place | None:
    step = record.get("step")
    if isinstance(step, bool) or not isinstance(step, int):
        return None
    return step, str(record.get("kind", "train"))


def _flat(record: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """The fields, each metric as one of its own."""
    found: dict[str, Any] = {}
    for name in names:
        value = record.get(name)
        if name == "metrics" and isinstance(value, Mapping):
            found |= {f"metrics.{key}": inner for key, inner in value.items()}
        elif name in record:
            found[name] = value
    return found


def _exact(value: Any) -> Any:
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, list):
        return [_exact(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _exact(item) for key, item in value.items()}
    return value


def _hash(value: Any) -> int:
    import xxhash

    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return xxhash.xxh3_64_intdigest(text.encode())


def _weights(a: RunDir, b: RunDir) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Steps of checkpoints that both have: with equal weights, and with other ones."""
    equal: list[int] = []
    other: list[int] = []
    for step in sorted({*committed_steps(a)} & {*committed_steps(b)}):
        one, two = (_weights_hash(run, step) for run in (a, b))
        if one is not None and two is not None:
            (equal if one == two else other).append(step)
    return tuple(equal), tuple(other)


def _weights_hash(run: RunDir, step: int) -> tuple[Any, Any] | None:
    """The hash and the version of the manifest, which says how the hash was made."""
    try:
        manifest = read_json(run.checkpoints / step_name(step) / "manifest.json") or {}
    except (OSError, ValueError):
        return None
    found = manifest.get("weights_hash")
    return None if found is None else (found, manifest.get("version"))
