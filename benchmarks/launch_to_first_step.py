"""From the command to a DDP model's first step: `dist-train launch` beside torchrun and accelerate.

Every launcher runs the same script, which knows none of them. Wall seconds from the command to the end of
the last rank's first optimizer step; and CPU seconds of the whole launch, to the end of all its processes.
`floor: one import` is one `python -c "import torch, torch._dynamo"`: what any script of torch pays before it
begins. (Ours imports them without the cyclic garbage collector, and may so be below it.) `spawned` is ours
with DIST_TRAIN_START_METHOD=spawn; it, accelerate and the floor run with 2 ranks alone. Two nodes are
simulated on this machine, two torchrun agents meet by c10d. A launch that does not end well in 100 s has no
value.

    python benchmarks/launch_to_first_step.py [--rounds 20] [--only 2 4 8 2x2]
"""

from __future__ import annotations

import argparse
import os
import resource
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import peers
from measurements import Aim, Row, add_arguments, interleaved, row, show

WITHIN_S = 100.0
# Kills a rank in its second step as long as the attempt's number is below the second word.
SCRIPT = """
import os, signal, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
for step in range(2):
    if step == 1 and attempt < int(sys.argv[2]) and rank == dist.get_world_size() - 1:
        open(f"{sys.argv[1]}/killed-{attempt}", "w").write(repr(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    if step == 0:
        open(f"{sys.argv[1]}/step-{attempt}-{rank}", "w").write(repr(time.time()))
dist.destroy_process_group()
"""
_NAME = "launch_to_first_step"
BIN = Path(sys.executable).parent
_AIMS = {2: Aim(at_most=0.45), 8: Aim(at_most=0.15)}
_GROUPS = ("2", "4", "8", "2x2")
# What DDP and every optimizer import as well.
_FLOOR, _IMPORTS = "floor: one import", "import torch, torch._dynamo"


@dataclass(frozen=True)
class Commands:
    """How to launch: one command, or one for each node; and what is added to the environment."""

    words: Sequence[Sequence[str]]
    environ: Mapping[str, str]


class Launch:
    """One launch of the script.

    Args:
        root: folder of the script, and of a new folder for this launch.
        ranks: over all nodes.
        kills: how many attempts lose a rank.
    """

    def __init__(self, root: Path, ranks: int, kills: int = 0) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=root))
        self.tail = [str(root / "train.py"), str(self.folder), str(kills)]
        self._ranks = ranks
        self.began = self.cpu_s = 0.0

    def ends_well(self, commands: Commands) -> bool:
        """Run to the end; whether all commands ended with 0 in time."""
        before, quiet = _cpu_s(), subprocess.DEVNULL
        environ = {**os.environ, "OMP_NUM_THREADS": "1", **commands.environ}
        self.began = time.time()
        processes = [
            subprocess.Popen(words, env=environ, stdin=quiet, stdout=quiet, stderr=quiet)
            for words in commands.words
        ]
        codes = [_wait(each, self.began + WITHIN_S - time.time()) for each in processes]
        self.cpu_s = _cpu_s() - before
        return codes == [0] * len(codes)

    def step_at(self, attempt: int) -> float | None:
        """When the last rank of an attempt had done its first step; None where one has not."""
        try:
            times = [
                float((self.folder / f"step-{attempt}-{rank}").read_text()) for rank in range(self._ranks)
            ]
        except (OSError, ValueError):
            return None
        return max(times)


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> int:
    try:
        return process.wait(max(0.1, timeout_s))
    except subprocess.TimeoutExpired:
        process.terminate()
        return process.wait()


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def dist_train(launch: Launch, procs: int, *options: str, method: str = "") -> Commands:
    """Ours: forked ranks and prewarm, or what `method` says."""
    words = [str(BIN / "dist-train"), "launch", "--device", "cpu", "--nproc-per-node", str(procs), *options]
    words += ["--run-dir", str(launch.folder / "run"), *launch.tail]
    return Commands([words], {"DIST_TRAIN_START_METHOD": method} if method else {})


def torchrun(launch: Launch, procs: int, *options: str) -> Commands:
    """One agent of torchrun."""
    words = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", str(procs), *options, *launch.tail]
    return Commands([words], {})


def torchrun_c10d(launch: Launch, procs: int, *options: str) -> Commands:
    """Two agents of torchrun that meet by c10d."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    words = [str(BIN / "torchrun"), "--nnodes", "2", "--nproc-per-node", str(procs), *options]
    words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    words += ["--rdzv-id", secrets.token_hex(4), *launch.tail]
    return Commands([words, words], {})


def _accelerate(launch: Launch, procs: int) -> Commands:
    # `--cpu --num_processes N` starts one process; --multi_gpu starts N, with or without GPUs.
    words = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines", "1"]
    words += ["--num_processes", str(procs), "--mixed_precision", "no", "--dynamo_backend", "no"]
    return Commands([[*words, *launch.tail]], peers.environ({}))


def _one_import() -> tuple[float, float] | None:
    """Wall and CPU seconds of a process that does no more; None where it failed."""
    before, began = _cpu_s(), time.time()
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", _IMPORTS], env=environ, check=False)
    return (time.time() - began, _cpu_s() - before) if done.returncode == 0 else None


def _one_launch(
    root: Path, ranks: int, commands: Callable[[Launch], Commands]
) -> tuple[float | None, float | None]:
    """Wall seconds to the first step and CPU seconds; None for what has no value."""
    launch = Launch(root, ranks)
    good = launch.ends_well(commands(launch))
    first = launch.step_at(0)
    wall = first - launch.began if good and first is not None else None
    return wall, launch.cpu_s if good else None


def measure(group: str, rounds: int, root: Path) -> list[Row]:
    """Interleave the launchers of one size."""
    commands: dict[str, Callable[[Launch], Commands]]
    if group == "2x2":
        ranks, base, title = 4, "torchrun c10d", "2 nodes x 2 ranks"
        commands = {
            "dist-train": lambda launch: dist_train(launch, 2, "--nodes", "2"),
            base: lambda launch: torchrun_c10d(launch, 2),
        }
        aim: Aim | None = Aim(at_most=0.5)
    else:
        ranks, base, title = int(group), "torchrun", f"{group} ranks"
        commands = {
            "dist-train": lambda launch: dist_train(launch, ranks),
            base: lambda launch: torchrun(launch, ranks),
        }
        aim = _AIMS.get(ranks)
    if group == "2":
        commands["spawned"] = lambda launch: dist_train(launch, ranks, method="spawn")
        commands["accelerate launch"] = lambda launch: _accelerate(launch, ranks)
    cpu: dict[str, list[float | None]] = {}

    def once(name: str) -> float | None:
        wall, used = (
            (_one_import() or (None, None)) if name == _FLOOR else _one_launch(root, ranks, commands[name])
        )
        cpu.setdefault(name, []).append(used)
        return wall

    names = [*commands, *([_FLOOR] if group == "2" else [])]
    wall = interleaved({name: lambda name=name: once(name) for name in names}, rounds)  # type: ignore[misc]
    rows = []
    for text, found in (("command to the first step", wall), ("CPU of the whole launch", cpu)):
        for name in names:
            against = None if name == base else (base, found[base])
            aimed = aim if name == "dist-train" and found is wall else None
            rows.append(row(_NAME, f"{title}: {text}", name, found[name], "s", against, aimed))
    return rows


def main() -> None:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description="from the command to the first step, beside the peers")
    add_arguments(parser)
    parser.add_argument("--only", nargs="+", choices=_GROUPS, default=_GROUPS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dist-train-bench-") as folder:
        root = Path(folder)
        (root / "train.py").write_text(SCRIPT)
        for group in options.only:
            show(measure(group, options.rounds, root), options.record)


if __name__ == "__main__":
    main()
