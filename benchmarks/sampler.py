"""First index of a shuffled epoch, and the memory for it: this sampler, torch's, and Grain's index shuffle.

    python benchmarks/sampler.py [--rounds 20] [--torch-max 10000000] [--record FILE]

Rank 3 of 8. Every measurement runs in a forked process of its own, so that memory is not shared; the rounds
of all cases are interleaved. Grain's sampler computes one index at a time by `index_shuffle`, up to 2**31.
Ratios are to torch's sampler where it is measured (it takes 48 bytes per sample). Asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import measurements
import peers
import torch
import torch.utils.data.distributed as torch_sampler
from measurements import Aim, Row

from dist_train.data.sampler import DistributedSampler

SIZES = (10**6, 10**7, 10**8, 10**9, 10**12)
_GRAIN_MAX = 2**31
_FASTER_AT = 10**7
_MOST_MIB = 32.0
_OURS, _TORCH, _GRAIN = "dist-train", "torch", "Grain"

Found = list[tuple[float, float] | None]


class Sized:
    """A dataset that has only a length."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n


def first_of_ours(n: int) -> int:
    """Rank 3 of 8, a new epoch."""
    sampler = DistributedSampler(Sized(n), num_replicas=8, rank=3, seed=1)
    sampler.set_epoch(1)
    return next(iter(sampler))


def first_of_torch(n: int) -> int:
    """The same with torch's sampler."""
    dataset: Any = Sized(n)
    sampler: torch_sampler.DistributedSampler[Any] = torch_sampler.DistributedSampler(
        dataset, num_replicas=8, rank=3, seed=1
    )
    sampler.set_epoch(1)
    first: int = next(iter(sampler))
    return first


def first_of_grain(n: int) -> int:
    """The same with Grain's index sampler."""
    from grain.python import IndexSampler, ShardOptions

    sampler = IndexSampler(
        num_records=n,
        shard_options=ShardOptions(shard_index=3, shard_count=8, drop_remainder=True),
        shuffle=True,
        num_epochs=2,
        seed=1,
    )
    return int(sampler[3].record_key)


def measured(first_index: Callable[[int], int], n: int) -> tuple[float, float] | None:
    """Seconds to the first index and MiB above the start, in a process of its own; None: it failed."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak
            before_kib = _status_kib("VmRSS")
            began = time.perf_counter()
            first_index(n)
            seconds = time.perf_counter() - began
            os.write(write_end, json.dumps([seconds, (_status_kib("VmHWM") - before_kib) / 1024]).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    if not text:
        return None
    seconds, mib = json.loads(text)
    return seconds, mib


def _status_kib(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def cases(torch_max: int, with_grain: bool) -> dict[tuple[str, int], Callable[[int], int]]:
    """What is measured: whose sampler, at which number of samples."""
    made: dict[tuple[str, int], Callable[[int], int]] = {}
    for n in SIZES:
        if n <= torch_max:
            made[_TORCH, n] = first_of_torch
        made[_OURS, n] = first_of_ours
        if with_grain and n < _GRAIN_MAX:
            made[_GRAIN, n] = first_of_grain
    return made


def rounds_of(
    made: Mapping[tuple[str, int], Callable[[int], int]], rounds: int
) -> dict[tuple[str, int], Found]:
    """Interleaved over all cases."""
    keys = {f"{name} {n}": (name, n) for name, n in made}
    found: dict[tuple[str, int], Found] = {key: [] for key in made}
    for number in range(rounds):
        for name in measurements.rotated(list(keys), number):
            key = keys[name]
            found[key].append(measured(made[key], key[1]))
    return found


def rows_of(found: Mapping[tuple[str, int], Found]) -> list[Row]:
    """Times against torch's, then memory against a bound."""
    times, memory = [], []
    for (name, n), values in found.items():
        case = f"{name}, {n:.0e} samples"
        ms, mib = _column(values, 0, 1000.0), _column(values, 1, 1.0)
        base = found.get((_TORCH, n))
        compared = None if base is None or name == _TORCH else (_TORCH, _column(base, 0, 1000.0))
        faster = Aim(at_most=1 / 40) if name == _OURS and n == _FASTER_AT else None
        times.append(measurements.row("sampler", "first index of an epoch", case, ms, "ms", compared, faster))
        bound = [_MOST_MIB for _ in mib]
        small = (f"{_MOST_MIB:g} MiB", bound, Aim(at_most=1.0)) if name == _OURS else None
        memory.append(_memory_row(case, mib, small))
    return [*times, *memory]


def _memory_row(
    case: str, mib: Sequence[float | None], bound: tuple[str, Sequence[float | None], Aim] | None
) -> Row:
    row = partial(measurements.row, "sampler", "memory up to the first index", case, mib, "MiB")
    return row() if bound is None else row(bound[:2], bound[2])


def _column(values: Found, place: int, factor: float) -> list[float | None]:
    return [None if value is None else factor * value[place] for value in values]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    measurements.add_arguments(parser)
    parser.add_argument("--torch-max", type=int, default=10**7, help="largest N for torch's sampler")
    parser.add_argument("--without-grain", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.without_grain:
        peers.importable()
        import grain.python  # noqa: F401  # before the forks: its import is not its sampler's time
    for first_index in (first_of_ours, first_of_torch):
        first_index(10**6)  # in the parent: modules that the first call imports
    found = rounds_of(cases(options.torch_max, not options.without_grain), options.rounds)
    measurements.show(rows_of(found), options.record)


if __name__ == "__main__":
    main()
