"""How a launch grows with its ranks: 16 to 512 of one node on this machine, all forked.

Real launches over gloo, one node, one agent. Per number of ranks: wall seconds of each part, to the last
rank, and CPU seconds of each rank in it:

    start           from the command to the first line of the last rank's script
    membership      dt.init: store, process groups, membership check
    all-reduce      of 64 Ki floats, median of three after a first one
    stop agreement  run.should_stop(), median of three votes
    log lines       200 lines of each rank, to the end of the run, when all of them are in the logs (checked)
    agent           CPU of command, agent, the process that forks, and the ranks' ends, divided by the ranks
    CPU             of the whole launch, divided by the ranks
    memory          of each rank (proportional set size) after dt.init; and of the machine per rank, in which
                    the kernel's buffers of the connections are, of which each rank has two to every other one

A curve is named by the slope of the logarithms: 0 is constant per rank, 1 is linear in the ranks. Ranks share
the cores: seconds of many ranks on few cores tell how the work grows, and not how long a cluster takes. Sizes
that would need more memory than `--memory`, or more threads than the limits of processes allow (`ulimit -u`,
pid_max), are left out, which is said.

    python benchmarks/scale.py [--rounds 3] [--ranks 16 64 128 256 512] [--memory GiB]
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

from measurements import Row, add_arguments, growth, row, show, slope

# The groups of 512 ranks alone take half a million connections: minutes on two cores.
_WITHIN_S = 900.0
_LINES = 200
# Open in a rank beside the connections of its groups.
_FILES = 64
_GIB = 1 << 30
_SCRIPT = """
import json, os, statistics, sys, time
began, cpu = time.time(), time.process_time()
import torch, torch.distributed as dist
import dist_train as dt
found = {"began": began, "start_cpu": cpu, "forked": "dist_train.agent.warm_parent.server" in sys.modules}

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
found["threads"] = len(os.listdir("/proc/self/task"))
dist.barrier()
with open("/proc/meminfo") as file:
    found["available_kib"] = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))
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
    "command, agent and ends, CPU per rank": "s",
    "whole launch, CPU per rank": "s",
    "threads per rank": "",
    "memory of the machine per rank": "MiB",
    "memory per rank": "MiB",
}


def launch(ranks: int, root: Path) -> list[float] | None:
    """One launch: what is measured, in order; None where it did not end well."""
    with tempfile.TemporaryDirectory(dir=root) as folder:
        here = Path(folder)
        (here / "train.py").write_text(_SCRIPT)
        words = [str(Path(sys.executable).parent / "dist-train"), "launch", "--device", "cpu"]
        words += ["--nproc-per-node", str(ranks), "--run-dir", str(here / "run"), "--max-restarts", "0"]
        cpu_before, available_kib, began = _cpu_s(), _available_kib(), time.time()
        if not _ends_well([*words, str(here / "train.py"), str(here), str(_LINES)]):
            return None
        ended, cpu = time.time(), _cpu_s() - cpu_before
        found = [json.loads((here / f"rank-{rank}.json").read_text()) for rank in range(ranks)]
        lines = sum(
            _lines_of(here / "run" / "logs" / "attempt-0" / f"rank-{rank}.log") for rank in range(ranks)
        )
        if not all(one["forked"] for one in found):
            print(f"{ranks} ranks: they were spawned, not forked", flush=True)
            return None
        if lines != ranks * _LINES:
            print(f"{ranks} ranks: {lines} log lines instead of {ranks * _LINES}", flush=True)
            return None
    return [*_values(found, began, ended, cpu), *_memory_mib(found, available_kib)]


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
        cpu / len(found),
        mean("threads"),
    ]


def _memory_mib(found: Sequence[Mapping[str, float]], available_kib: float) -> list[float]:
    """Per rank: of the machine, and of the ranks themselves."""
    left_kib = min(one["available_kib"] for one in found)
    pss_kib = statistics.fmean(one["pss_kib"] for one in found)
    return [max(0.0, available_kib - left_kib) / len(found) / 1024, pss_kib / 1024]


def _available_kib() -> float:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("MemAvailable:")))


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


def _why_left_out(ranks: int, before: Mapping[int, Sequence[float]], most_gib: float) -> str:
    """Why so many ranks may not be started.

    Args:
        before: what was measured, by fewer ranks.
    """
    if ranks * _memory_expected(ranks, before) * (1 << 20) > most_gib * _GIB:
        return f"they may need more than {most_gib:.1f} GiB"
    threads = ranks * (before[max(before)][-3] if before else 16.0)
    if threads > (most := _most_threads()):
        return f"they may need more than the {most} threads that there may be"
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 2 * ranks + _FILES > files:
        return f"each has connections to all others twice, and may open {files} files (ulimit -n)"
    return ""


def _memory_expected(ranks: int, before: Mapping[int, Sequence[float]]) -> float:
    """MiB per rank: it goes on to grow as it did between the last two sizes, and is not expected to fall."""
    points = [(float(size), max(before[size][-2:])) for size in sorted(before)]
    if not points:
        return 24.0
    exponent = slope(points[-2:]) if len(points) > 1 else 1.0
    return float(points[-1][1] * (ranks / points[-1][0]) ** max(0.0, exponent))


def _most_threads() -> int:
    """How many threads may still be started."""
    running = int(Path("/proc/loadavg").read_text(encoding="ascii").split()[3].split("/")[1])
    limits = [int(Path(f"/proc/sys/kernel/{name}").read_text()) for name in ("pid_max", "threads-max")]
    of_user, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return min([*limits, *([of_user] if of_user != resource.RLIM_INFINITY else [])]) - running


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="how a launch grows with its ranks")
    add_arguments(parser, rounds=3)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 64, 128, 256, 512])
    most_gib = 0.75 * _available_kib() / (1 << 20)
    text = "most of all ranks together, default: three quarters of what is available"
    parser.add_argument("--memory", type=float, default=most_gib, metavar="GiB", help=text)
    options = parser.parse_args()
    found: dict[int, list[list[float] | None]] = {}
    good: dict[int, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="dist-train-bench-") as folder:
        for ranks in sorted(options.ranks):
            if why := _why_left_out(ranks, good, options.memory):
                print(f"{ranks} ranks are left out: {why}", flush=True)
                continue
            found[ranks] = []
            for _ in range(options.rounds):
                began = time.time()
                one = launch(ranks, Path(folder))
                print(f"{ranks} ranks: {'' if one else 'NOT WELL, '}{time.time() - began:.1f} s", flush=True)
                found[ranks].append(one)
                good |= {ranks: one} if one is not None else {}
    show(rows_of(found), options.record)


if __name__ == "__main__":
    main()
