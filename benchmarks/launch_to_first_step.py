"""From the command to a DDP model's first step: `dist-train launch` beside torchrun; and after a kill -9.

Rounds are interleaved and begin each time with another launcher. Per number of ranks: wall seconds from the
command to the end of the last rank's first optimizer step, and CPU seconds of all processes; then the
seconds from the kill of a rank in its second step to the first step of the next attempt. Prints medians with
95 % intervals and ratios of the same round; asserts nothing. A round that is not over in 100 s is left out.

    python benchmarks/launch_to_first_step.py [--rounds 20] [--ranks 2 4 8]
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from measurements import interval

_WITHIN_S = 100.0
_SCRIPT = """
import os, signal, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
for step in range(2):
    if step == 1 and attempt == 0 and rank == dist.get_world_size() - 1 and "kill" in sys.argv:
        open(f"{sys.argv[1]}/killed", "w").write(repr(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    if step == 0:
        open(f"{sys.argv[1]}/step-{attempt}-{rank}", "w").write(repr(time.time()))
dist.destroy_process_group()
"""


class Timing(NamedTuple):
    """One launch: seconds to the first step, CPU seconds, seconds from the kill to the next first step."""

    first_step_s: float
    cpu_s: float
    restart_s: float | None


def commands(ranks: int, folder: Path, script: Path, kill: bool) -> dict[str, list[str]]:
    """The launchers; each is given the folder for its times as the script's argument."""
    tail = [str(script), str(folder), *(["kill"] if kill else [])]
    bin_ = Path(sys.executable).parent
    ours = [str(bin_ / "dist-train"), "launch", "--device", "cpu", "--nproc-per-node", str(ranks)]
    ours += ["--run-dir", str(folder / "run"), "--max-restarts", "1", *tail]
    torchrun = [str(bin_ / "torchrun"), "--standalone", "--nproc-per-node", str(ranks), "--max-restarts", "1"]
    return {"forked": ours, "spawned": ours, "torchrun": [*torchrun, *tail]}


def launch(name: str, ranks: int, kill: bool, root: Path) -> Timing | None:
    """Run it once; None where it did not end well in time."""
    with tempfile.TemporaryDirectory(dir=root) as folder:
        here = Path(folder)
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        if name == "spawned":
            environ["DIST_TRAIN_START_METHOD"] = "spawn"
        words = commands(ranks, here, root / "train.py", kill)[name]
        cpu_before, began = _cpu_s(), time.time()
        if not _ends_well(words, environ):
            return None
        first = max(float((here / f"step-0-{rank}").read_text()) for rank in range(ranks))
        restart = None
        if kill:
            again = max(float((here / f"step-1-{rank}").read_text()) for rank in range(ranks))
            restart = again - float((here / "killed").read_text())
        return Timing(first - began, _cpu_s() - cpu_before, restart)


def _ends_well(words: list[str], environ: Mapping[str, str]) -> bool:
    quiet = subprocess.DEVNULL
    with subprocess.Popen(words, env=environ, stdin=quiet, stdout=quiet, stderr=quiet) as process:
        try:
            return process.wait(_WITHIN_S) == 0
        except subprocess.TimeoutExpired:
            process.terminate()
            return False


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _print(title: str, found: Mapping[str, list[float]]) -> None:
    print(title)
    for name, values in found.items():
        if not values:
            print(f"  {name:<10} none")
            continue
        low, high = interval(values)
        text = f"  {name:<10} {statistics.median(values):7.2f}  [{low:.2f} .. {high:.2f}]  n={len(values)}"
        if name != "torchrun" and len(values) == len(found["torchrun"]):
            ratios = [a / b for a, b in zip(values, found["torchrun"], strict=True)]
            low, high = interval(ratios)
            text += f"   / torchrun {statistics.median(ratios):.2f} [{low:.2f} .. {high:.2f}]"
        print(text, flush=True)


def measure(ranks: int, rounds: int, kill: bool, root: Path) -> None:
    """Interleave the launchers and print what was found."""
    names = list(commands(ranks, root, root, kill))
    found: dict[str, list[Timing]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            timing = launch(name, ranks, kill, root)
            if timing is not None:
                found[name].append(timing)
    if kill:
        times = {name: [each.restart_s or 0.0 for each in all_] for name, all_ in found.items()}
        _print(f"{ranks} ranks, kill -9 of one to the next attempt's first step, s", times)
        return
    _print(
        f"{ranks} ranks, command to first step, s",
        {name: [each.first_step_s for each in all_] for name, all_ in found.items()},
    )
    _print(
        f"{ranks} ranks, CPU seconds of the whole launch",
        {name: [each.cpu_s for each in all_] for name, all_ in found.items()},
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="from the command to the first step, beside torchrun")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    options = parser.parse_args()
    print(f"{options.rounds} interleaved rounds, median [95 % interval of the median]")
    with tempfile.TemporaryDirectory(prefix="dist-train-bench-") as folder:
        root = Path(folder)
        (root / "train.py").write_text(_SCRIPT)
        for ranks in options.ranks:
            measure(ranks, options.rounds, False, root)
        measure(options.ranks[0], options.rounds, True, root)


if __name__ == "__main__":
    main()
