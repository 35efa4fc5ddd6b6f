"""The trainer's loop and the `dt.prepare` + `dt.loader` loop against a hand-written DDP loop.

    python benchmarks/loop_overhead.py [--rounds 20] [--steps 40] [--ranks 2] [--width 256]

All three run in the same process group, one after the other in every round (in rotating
order), on the same model, data and batch. Prints steps/s of each and the median of the
rounds' ratios to the hand-written loop with a 95 % interval from order statistics. Asserts nothing.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as torch_dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import dist_train as dt
from dist_train.config.load import load_text
from dist_train.distributed.run import Run
from dist_train.observability.sink import SinkContext
from dist_train.observability.sink_fanout import SinkFanout
from dist_train.rundir.directory import RunDir
from dist_train.trainer.build import build
from dist_train.trainer.build_components import make_components
from dist_train.trainer.trainer import steps_of

SAMPLES = 8192
Loop = Callable[[int], None]


def data(width: int) -> TensorDataset:
    """Random inputs and ten classes."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, width, generator=generator)
    return TensorDataset(x, torch.randint(0, 10, (SAMPLES,), generator=generator))


def model(width: int) -> nn.Module:
    """Three hidden layers."""
    hidden = [layer for _ in range(3) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, 10))


def endless(epochs: Callable[[int], object]) -> Iterator[object]:
    """Batches of one epoch after another."""
    epoch = 0
    while True:
        yield from epochs(epoch)  # type: ignore[misc]
        epoch += 1


def by_hand(run: Run, width: int, batch: int) -> Loop:
    """The hand-written DDP loop."""
    net = DistributedDataParallel(model(width), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    sampler: DistributedSampler[object] = DistributedSampler(
        data(width), num_replicas=run.world_size, rank=run.rank, shuffle=True
    )
    loader = DataLoader(data(width), batch_size=batch // run.world_size, sampler=sampler)

    def epoch(number: int) -> DataLoader[object]:
        sampler.set_epoch(number)
        return loader

    return _plain_loop(net, optimizer, endless(epoch))


def prepared(run: Run, width: int, batch: int) -> Loop:
    """The same loop after the five changed lines."""
    net = dt.prepare(model(width))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    loader = dt.loader(data(width), batch_size=batch)
    return _plain_loop(net, optimizer, endless(lambda epoch: loader))


def _plain_loop(net: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator[object]) -> Loop:
    def loop(steps: int) -> None:
        for _ in range(steps):
            inputs, targets = next(batches)  # type: ignore[misc]
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(net(inputs), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return loop


CONFIG = """
model: {{target: "loop_overhead:model", args: {{width: {width}}}}}
data: {{train: {{target: "loop_overhead:data", args: {{width: {width}}}}}, batch_size: {batch}}}
loss: torch.nn.functional:cross_entropy
optimizer: {{target: "torch.optim:SGD", args: {{lr: 0.01}}}}
trainer: {{steps: 1000000000, log_every_steps: 10}}
checkpoint: {{every_steps: 1000000000}}
"""


def trained(run: Run, width: int, batch: int, folder: Path) -> Loop:
    """The trainer's own step: loader, stop vote, records every ten steps; no save is due."""
    if run.is_main:
        RunDir(folder).create()
    config = load_text(CONFIG.format(width=width, batch=batch), "loop_overhead.yaml").config
    trainer = build(config, make_components(config), run, RunDir(folder), grace_s=30.0)
    if run.is_main:  # without the console's lines among ours
        trainer = replace(trainer, sinks=SinkFanout.open(["jsonl"], SinkContext(RunDir(folder))))
    batches = trainer.pace.waiting(endless(lambda epoch: steps_of(trainer.loader)))
    done = 0

    def loop(steps: int) -> None:
        nonlocal done
        for _ in range(steps):
            done += 1
            trainer.step(done, next(batches))  # type: ignore[arg-type]

    return loop


def measure(loops: dict[str, Loop], rounds: int, steps: int, run: Run) -> dict[str, list[float]]:
    """Seconds of every round of every loop, measured on rank 0."""
    for loop in loops.values():
        loop(10)
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    names = list(loops)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            run.control.barrier()
            began = time.perf_counter()
            loops[name](steps)
            run.control.barrier()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def interval(values: list[float], level: float = 0.95) -> tuple[float, float]:
    """Confidence interval of the median, from order statistics: no assumption on the distribution."""
    ordered, n, tail = sorted(values), len(values), (1 - level) / 2
    k, below = 0, 0.5**n  # P(at most k of n values lie below the median)
    while below <= tail:
        k += 1
        below += math.comb(n, k) * 0.5**n
    k = max(1, k)
    return ordered[k - 1], ordered[n - k]


def report(seconds: dict[str, list[float]], steps: int) -> None:
    """Print the table."""
    base = seconds["by hand"]
    print(f"{'loop':<12} {'ms/step':>8} {'steps/s':>8}   speed against by hand: median [95 % interval]")
    for name, values in seconds.items():
        ratios = [one / other for one, other in zip(base, values, strict=True)]
        low, high = interval(ratios)
        middle = statistics.median(values) / steps
        ratio = "" if name == "by hand" else f"   {statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}]"
        print(f"{name:<12} {1000 * middle:8.2f} {1 / middle:8.0f}{ratio}")


def rank_main(options: argparse.Namespace) -> None:
    """One rank of the group."""
    torch.set_num_threads(1)
    with dt.init(seed=0) as run:
        batch = options.batch * run.world_size
        loops = {
            "by hand": by_hand(run, options.width, batch),
            "dt.prepare": prepared(run, options.width, batch),
            "trainer": trained(run, options.width, batch, options.folder),
        }
        seconds = measure(loops, options.rounds, options.steps, run)
        if run.is_main:
            where = f"{run.world_size} ranks on {run.device.type} ({torch_dist.get_backend()})"
            print(f"{where}, {options.rounds} rounds x {options.steps} steps, batch {batch}")
            report(seconds, options.steps)


def main() -> int:
    """Start the ranks, or run as one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=40, help="steps of each loop in each round")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64, help="samples per step and rank")
    parser.add_argument("--width", type=int, default=256, help="features of the hidden layers")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder is not None:
        rank_main(options)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        ranks = [_start(rank, options.ranks, folder) for rank in range(options.ranks)]
        return max(abs(rank.wait()) for rank in ranks)


def _start(rank: int, world_size: int, folder: str) -> subprocess.Popen[bytes]:
    facts = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    variables = {"DIST_TRAIN_RUN_ID": "benchmark", "DIST_TRAIN_ATTEMPT": "0", "DIST_TRAIN_NODE_RANK": "0"}
    variables |= {"DIST_TRAIN_NNODES": "1", "DIST_TRAIN_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
    variables |= {"DIST_TRAIN_INIT_METHOD": f"file://{folder}/meet"}
    words = [__file__, *sys.argv[1:], "--folder", f"{folder}/run"]
    environment = {**os.environ, **{name: str(value) for name, value in facts.items()}, **variables}
    return subprocess.Popen([sys.executable, *words], env=environment)


if __name__ == "__main__":
    # The config names this file's functions: they must be importable under its own name.
    sys.modules["loop_overhead"] = sys.modules["__main__"]
    sys.exit(main())
