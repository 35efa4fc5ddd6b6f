"""First index and peak memory of a shuffled epoch: this sampler against torch's.

Prints medians and the middle 80 % of the rounds; asserts nothing. Every measurement runs in a
forked process of its own, so that memory is not shared; the rounds of all cases are interleaved.

    python benchmarks/sampler.py [--rounds 20] [--torch-max 10000000]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.utils.data.distributed as torch_sampler

from dist_train.data.sampler import DistributedSampler

SIZES = (10**6, 10**7, 10**8, 10**9)


class Sized:
    """A dataset that has only a length."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n


def first_index_of_ours(n: int) -> int:
    """Rank 3 of 8, a new epoch."""
    sampler = DistributedSampler(Sized(n), num_replicas=8, rank=3, seed=1)
    sampler.set_epoch(1)
    return next(iter(sampler))


def first_index_of_torch(n: int) -> int:
    """The same with torch's sampler."""
    dataset: torch.utils.data.Dataset[int] = Sized(n)  # type: ignore[assignment]
    sampler: torch_sampler.DistributedSampler[int] = torch_sampler.DistributedSampler(
        dataset, num_replicas=8, rank=3, seed=1
    )
    sampler.set_epoch(1)
    first: int = next(iter(sampler))
    return first


def measured(first_index: Callable[[int], int], n: int) -> tuple[float, float]:
    """Seconds to the first index and MiB above the start, in a process of its own."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak
            before_kib = _status_kib("VmRSS")
            start = time.perf_counter()
            first_index(n)
            seconds = time.perf_counter() - start
            os.write(write_end, json.dumps([seconds, (_status_kib("VmHWM") - before_kib) / 1024]).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    if not text:
        raise SystemExit(
            f"the measurement of {first_index.__name__}({n}) ended without a result: out of memory?"
        )
    seconds, mib = json.loads(text)
    return seconds, mib


def _status_kib(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def _spread(values: list[float], unit: str) -> str:
    ordered = sorted(values)
    tenth = len(ordered) // 10
    low, high = ordered[tenth], ordered[-1 - tenth]
    return f"{statistics.median(ordered):10.3f} {unit} [{low:.3f} .. {high:.3f}]"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="first index and peak memory of a shuffled epoch")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--torch-max", type=int, default=10**7, help="largest N for torch's sampler (48 bytes each)"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = [("dist-train", first_index_of_ours, n) for n in SIZES]
    cases += [("torch", first_index_of_torch, n) for n in SIZES if n <= options.torch_max]
    found: dict[tuple[str, int], list[tuple[float, float]]] = {(name, n): [] for name, _, n in cases}
    for _ in range(options.rounds):
        for name, first_index, n in cases:
            found[name, n].append(measured(first_index, n))
    print(f"{options.rounds} interleaved rounds, median [10 % .. 90 %]")
    for (name, n), rounds in found.items():
        times = _spread([seconds * 1000 for seconds, _ in rounds], "ms")
        print(
            f"{name:>10} N={n:<11,} first index {times:<40} peak {_spread([mib for _, mib in rounds], 'MiB')}"
        )


if __name__ == "__main__":
    main()
