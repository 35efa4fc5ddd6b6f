"""Load and run an example: on one rank, or on several forked ones."""

from __future__ import annotations

import importlib.util
import os
import runpy
import signal
import sys
from pathlib import Path
from types import ModuleType

import torch
import torch._dynamo  # DDP imports it: once here, not once in every forked rank
from torch.optim.optimizer import register_optimizer_step_post_hook

from dist_train import env
from dist_train.testing import run_ranks

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def load_example(name: str) -> ModuleType:
    """`load_example("from_tutorials/samplers.py")`: the file as a module, without running its main part."""
    path = EXAMPLES / name
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_script(path: Path, words: tuple[str, ...] = (), kill_at: int = 0) -> int:
    """Run a script as `__main__` on this rank; returns its steps. After step `kill_at` it kills itself."""
    torch.set_num_threads(1)
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1
        if steps == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    hook = register_optimizer_step_post_hook(count)
    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path), *words]
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        hook.remove()
        sys.path.remove(str(path.parent))
    return steps


def on_ranks(
    n: int,
    path: Path,
    words: tuple[str, ...],
    run_dir: Path,
    attempt: int = 0,
    kill: tuple[int, int] = (-1, 0),
) -> list[int]:
    """Run a script on n forked ranks with an agent's variables; returns the optimizer steps of each.

    Args:
        kill: (rank, step) of a SIGKILL.
    """

    def rank_main() -> int:
        return run_script(path, words, kill[1] if int(os.environ["RANK"]) == kill[0] else 0)

    facts = env.WorkerEnv("example", run_dir, attempt, node_rank=0, nnodes=1, device="cpu")
    return run_ranks(rank_main, n, timeout_s=60, environ=facts.to_environ(), after_failure_s=0.5)
