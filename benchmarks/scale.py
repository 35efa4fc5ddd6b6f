"""How a launch grows with its ranks: 16 to 512 on this machine, forked where the product forks.

Real launches over gloo, one node, one agent. Per number of ranks: wall seconds of each part, to the last
rank, and CPU seconds of each rank in it:

    start           from the command to the first line of the last rank's script
    membership      dt.init: store, process groups, membership check
    all-reduce      of 64 Ki floats, median of three after a first one
    stop agreement  run.should_stop(), median of three votes
    log lines       200 lines of each rank, to the end of the run, when all of them are in the logs (checked)
    agent           CPU of command, agent and the process that forks, divided by the ranks
    memory          of each rank (proportional set size) after dt.init

A curve is named by the slope of the logarithms: 1 is linear. Ranks share the cores: seconds of many ranks on
few cores tell how the work grows, and not how long a cluster takes. A node of more than 100 ranks spawns them
(MOST_RANKS of the warm parent): seconds, CPU and memory of 128 and more are of spawned ranks. Sizes that
would need more memory than `--memory` are left out, which is said.

    python benchmarks/scale.py [--rounds 3] [--ranks 16 64 128 256 512] [--memory 12]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from measurements import Row, add_arguments, growth, row, show

_WITHIN_S = 400.0
_LINES = 200
_GIB = 1 << 30
_SCRIPT = """
import json, os, statistics, sys, time
began, cpu = time.time(), time.process_time()
import torch, torch.distributed as dist
import dist_train as dt
found = {"began": began, "start_cpu": cpu}

def timed(name, work, times):
    values, cpu = [], time.process_time()
    for _ in range(times):
        dist.barrier()
        at = time.perf_counter()
        work()
        values.append(time.perf_counter() - at)
    found[name], found[name + "_cpu"] = statistics.median(values), (time.process_time() - cpu) / times

cpu = time.process_time()
run = dt.init(seed=0, device="cpu")
found["joined"], found["membership_cpu"] = time.time(), time.process_time() - cpu
values = torch.ones(1 << 16)
dist.all_reduce(values)
timed("all_reduce", lambda: dist.all_reduce(values), 3)
run.should_stop()
timed("stop", run.should_stop, 3)
with open("/proc/self/smaps_rollup") as file:
    found["pss_kib"] = next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
dist.barrier()
found["lines_began"], cpu = time.time(), time.process_time()
for number in range(int(sys.argv[2])):
    print("rank", run.rank, "line", number, "of a log that somebody reads later", flush=True)
found["lines_cpu"] = time.process_time() - cpu
with open(f"{sys.argv[1]}/rank-{run.rank}.json", "w") as file:
    json.dump(found, file)
"""
# What is measured -> its unit.
_MEASURED = {
    "start, wall": "s",
    "start, CPU per rank": "s",
    "membership, wall": "s",
    "membership, CPU per rank": "s",
    "all-reduce of 64 Ki floats, wall": "s",
    "all-reduce of 64 Ki floats, CPU per rank": "s",
    "stop agreement, wall": "s",
    "stop agreement, CPU per rank": "s",
    f"{_LINES} log lines per rank, wall": "s",
    f"{_LINES} log lines per rank, CPU per rank": "s",
    "command and agent, CPU per rank": "s",
    "memory per rank": "MiB",
}


def launch(ranks: int, root: Path) -> list[float] | None:
    """One launch: what is measured, in order; None where it did not end well."""
    with tempfile.TemporaryDirectory(dir=root) as folder:
        here = Path(folder)
        (here / "train.py").write_text(_SCRIPT)
        words = [str(Path(sys.executable).parent / "dist-train"), "launch", "--device", "cpu"]
        words += ["--nproc-per-node", str(ranks), "--run-dir", str(here / "run"), "--max-restarts", "0"]
        cpu_before, began = _cpu_s(), time.time()
        if not _ends_well([*words, str(here / "train.py"), str(here), str(_LINES)]):
            return None
        ended, cpu = time.time(), _cpu_s() - cpu_before
        found = [json.loads((here / f"rank-{rank}.json").read_text()) for rank in range(ranks)]
        lines = sum(
            _lines_of(here / "run" / "logs" / "attempt-0" / f"rank-{rank}.log") for rank in range(ranks)
        )
        if lines != ranks * _LINES:
            print(f"{ranks} ranks: {lines} log lines instead of {ranks * _LINES}", flush=True)
            return None
    return _values(found, began, ended, cpu)


def _values(found: Sequence[Mapping[str, float]], began: float, ended: float, cpu: float) -> list[float]:
    def mean(name: str) -> float:
        return statistics.fmean(one[name] for one in found)

    def last(name: str) -> float:
        return max(one[name] for one in found)

    parts = ("start_cpu", "membership_cpu", "lines_cpu")
    of_ranks = sum(sum(one[part] for part in parts) for one in found)
    of_ranks += sum(3 * (one["all_reduce_cpu"] + one["stop_cpu"]) for one in found)
    return [
        last("began") - began,
        mean("start_cpu"),
        last("joined") - last("began"),
        mean("membership_cpu"),
        last("all_reduce"),
        mean("all_reduce_cpu"),
        last("stop"),
        mean("stop_cpu"),
        ended - last("lines_began"),
        mean("lines_cpu"),
        max(0.0, cpu - of_ranks) / len(found),
        mean("pss_kib") / 1024,
    ]


def _lines_of(log: Path) -> int:
    return sum(line.startswith("rank ") for line in log.read_text().splitlines())


def _ends_well(words: Sequence[str]) -> bool:
    quiet = subprocess.DEVNULL
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(words, env=environ, stdin=quiet, stdout=quiet, stderr=quiet) as process:
        try:
            return process.wait(_WITHIN_S) == 0
        except subprocess.TimeoutExpired:
            process.terminate()
            return False


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def rows_of(found: Mapping[int, Sequence[Sequence[float] | None]]) -> list[Row]:
    """A row per size, and one for the curve, of everything that is measured."""
    rows: list[Row] = []
    for number, (measured, unit) in enumerate(_MEASURED.items()):
        values = {
            ranks: [None if one is None else one[number] for one in launches]
            for ranks, launches in found.items()
        }
        rows += [row("scale", measured, f"{ranks} ranks", each, unit) for ranks, each in values.items()]
        rows.append(growth("scale", measured, values))
    return rows


def _fits(ranks: int, before: Sequence[float] | None, before_ranks: int, most_gib: float) -> bool:
    """Whether so many ranks may be started; memory per rank is taken to grow with their number at most."""
    per_rank_mib = 24.0 if before is None else before[-1] * max(1.0, ranks / before_ranks)
    return ranks * per_rank_mib * (1 << 20) <= most_gib * _GIB


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="how a launch grows with its ranks")
    add_arguments(parser, rounds=3)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 64, 128, 256, 512])
    parser.add_argument(
        "--memory", type=float, default=12.0, metavar="GiB", help="most of all ranks together"
    )
    options = parser.parse_args()
    found: dict[int, list[list[float] | None]] = {}
    newest: list[float] | None = None
    newest_ranks = 0
    with tempfile.TemporaryDirectory(prefix="dist-train-bench-") as folder:
        for ranks in sorted(options.ranks):
            if not _fits(ranks, newest, newest_ranks, options.memory):
                print(
                    f"{ranks} ranks are left out: they may need more than {options.memory:g} GiB", flush=True
                )
                continue
            found[ranks] = []
            for _ in range(options.rounds):
                began = time.time()
                one = launch(ranks, Path(folder))
                print(f"{ranks} ranks: {'' if one else 'NOT WELL, '}{time.time() - began:.1f} s", flush=True)
                found[ranks].append(one)
                newest, newest_ranks = (one, ranks) if one is not None else (newest, newest_ranks)
    show(rows_of(found), options.record)


if __name__ == "__main__":
    main()
