"""Steps of the trainer and of `dt.prepare` + `dt.loader` against a hand-written DDP loop, and the peers.

    python benchmarks/loop_overhead.py [--rounds 20] [--ranks 2] [--cases "by hand" trainer] [--record FILE]
    python benchmarks/loop_overhead.py --device cuda --ranks 1      # a rank for each GPU; without the peers

Every loop has a group of ranks of its own (a hook that one library puts on all optimizers would slow the
others), which waits on a pipe while another one trains: all in every round, in rotating order.
Ratios are speeds: by hand / the loop, of the same round. The trainer writes its records, votes on a stop and
looks for losses that are not finite. Asserts nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import measurements
import peers
from measurements import Aim, Row

# Name, width, samples per step and rank, steps of a round: some 3 and 20 ms on one core per rank.
SIZES = (("3 ms steps", 256, 64, 100), ("20 ms steps", 704, 64, 30))
# Where the milliseconds of a step are not those of a CPU.
WIDTHS = {name: f"layers of {width}" for name, width, _, _ in SIZES}
_WARM_STEPS = 10
_BASE = "by hand"
_OURS = ("dt.prepare", "trainer")
_PEERS = ("accelerate", "Fabric", "Lightning Trainer")


class Group:
    """The ranks of one loop."""

    def __init__(self, case: str, ranks: int, folder: Path, device: str) -> None:
        self.case = case
        self._ranks = [_start(case, rank, ranks, folder, device) for rank in range(ranks)]

    def seconds(self, size: str, steps: int) -> float | None:
        """Of these steps, by rank 0's clock; None where a rank has ended."""
        with contextlib.suppress(BrokenPipeError, ValueError):
            for rank in self._ranks:
                assert rank.stdin is not None
                rank.stdin.write(json.dumps([size, steps]).encode() + b"\n")
                rank.stdin.flush()
            answers = [rank.stdout.readline() for rank in self._ranks if rank.stdout is not None]
            return float(json.loads(answers[0])) if all(answers) else None
        return None

    def end(self) -> None:
        """End the ranks: closing their input lets them leave."""
        for rank in self._ranks:
            with contextlib.suppress(BrokenPipeError):
                rank.communicate(timeout=None)


def _start(case: str, rank: int, ranks: int, folder: Path, device: str) -> subprocess.Popen[bytes]:
    facts = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "NODE_RANK": 0}
    place = folder / case.replace(" ", "-")
    place.mkdir(exist_ok=True)
    variables = {"DIST_TRAIN_RUN_ID": "benchmark", "DIST_TRAIN_ATTEMPT": "0", "DIST_TRAIN_NODE_RANK": "0"}
    variables |= {"DIST_TRAIN_NNODES": "1", "DIST_TRAIN_DEVICE": device, "OMP_NUM_THREADS": "1"}
    variables |= {"DIST_TRAIN_INIT_METHOD": f"file://{place}/meet", "BENCHMARK_FOLDER": str(place)}
    # Read by peers, which use the group that is there already.
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "ACCELERATE_USE_CPU": "true"}
    environment = {**os.environ, **{name: str(value) for name, value in facts.items()}, **variables}
    if case in _PEERS:
        environment = peers.environ(environment)
    words = [sys.executable, __file__, "--as-rank", case]
    return subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def rank_main(case: str) -> None:
    """One rank: makes the loop of a size when it is first asked for, and trains what its input says."""
    import torch
    import torch.distributed as torch_dist
    from training_loops import FORM_THE_GROUP, LOOPS, Loop, Shape

    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is printed is written, and not among the answers
    torch.set_num_threads(1)
    device = os.environ["DIST_TRAIN_DEVICE"]
    if case not in FORM_THE_GROUP:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        meet = f"file://{os.environ['BENCHMARK_FOLDER']}/meet"
        torch_dist.init_process_group(
            "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl", init_method=meet, rank=rank, world_size=size
        )
        if device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    shapes = {name: Shape(width, batch) for name, width, batch, _ in SIZES}
    loops: dict[str, Loop] = {}
    for line in sys.stdin.buffer:
        size_name, steps = json.loads(line)
        if size_name not in loops:
            loops[size_name] = LOOPS[case](shapes[size_name])
            loops[size_name](_WARM_STEPS)
        meet_all(device)
        began = time.perf_counter()
        loops[size_name](steps)
        meet_all(device)
        answers.write(json.dumps(time.perf_counter() - began).encode() + b"\n")
    os._exit(0)  # without what the libraries do at the end of a training


def meet_all(device: str) -> None:
    """Wait for the other ranks, and for the GPU: by a sum on gloo, since one rank alone forms no group."""
    import torch
    import torch.distributed as torch_dist

    if device == "cuda":
        torch.cuda.synchronize()
    if not torch_dist.is_initialized():
        return
    if device == "cpu":
        torch_dist.barrier()
    else:
        torch_dist.all_reduce(torch.zeros(1))


@contextlib.contextmanager
def groups(cases: Sequence[str], ranks: int, device: str) -> Iterator[dict[str, Group]]:
    """The ranks of every case, which are ended with the block."""
    with tempfile.TemporaryDirectory() as folder:
        made = {case: Group(case, ranks, Path(folder), device) for case in cases}
        try:
            yield made
        finally:
            for group in made.values():
                group.end()


def measure(cases: Sequence[str], ranks: int, rounds: int, device: str) -> list[Row]:
    """The rows of all sizes."""
    rows: list[Row] = []
    with groups(cases, ranks, device) as made:
        for size, _, _, steps in SIZES:
            for group in made.values():
                group.seconds(size, _WARM_STEPS)
            runs = {case: partial(group.seconds, size, steps) for case, group in made.items()}
            found = measurements.interleaved(runs, rounds)
            per_step = {
                case: [None if value is None else 1000 * value / steps for value in values]
                for case, values in found.items()
            }
            where = "on the CPU" if device == "cpu" else "on GPUs"
            what = f"a training step of {ranks} ranks {where}, {size if device == 'cpu' else WIDTHS[size]}"
            for case, values in per_step.items():
                base = None if case == _BASE else (_BASE, per_step[_BASE])
                aim = Aim(at_least=1.0) if case in _OURS else None
                rows.append(
                    measurements.row("loop_overhead", what, case, values, "ms", base, aim, inverse=True)
                )
    return rows


def main() -> int:
    """Start the ranks and measure, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    measurements.add_arguments(parser)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--cases", nargs="+", default=[_BASE, *_OURS, *_PEERS])
    parser.add_argument("--as-rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank is not None:
        rank_main(options.as_rank)
        return 0
    cases = list(dict.fromkeys([_BASE, *options.cases]))
    if options.device == "cuda":
        cases = [case for case in cases if case not in _PEERS]  # theirs are written for the CPU
    measurements.show(measure(cases, options.ranks, options.rounds, options.device), options.record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
