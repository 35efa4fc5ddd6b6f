"""The examples as tests use them: a file by its path, on one rank or on several forked ones."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch._dynamo  # DDP imports it: once here, not once in every forked rank
from torch.optim.optimizer import register_optimizer_step_post_hook

from dist_train import env
from dist_train.testing import run_ranks

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def load_example(name: str) -> ModuleType:
    """`load_example("from_tutorials/samplers.py")`: the file as a module, its main part not run."""
    path = EXAMPLES / name
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_script(
    path: Path, words: tuple[str, ...] = (), at_step: Callable[[int], None] = lambda step: None
) -> dict[str, Any]:
    """Run a script as `__main__` on this rank; `at_step` hears of each optimizer step, from 1."""
    torch.set_num_threads(1)
    done = iter(range(1, 1 << 30))
    hook = register_optimizer_step_post_hook(lambda *_: at_step(next(done)))
    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path), *words]
    try:
        return runpy.run_path(str(path), run_name="__main__")
    finally:
        hook.remove()
        sys.path.remove(str(path.parent))


def on_ranks(
    n: int,
    path: Path,
    words: tuple[str, ...],
    run_dir: Path,
    attempt: int = 0,
    kill: tuple[int, int] = (-1, 0),
) -> list[dict[str, Any]]:
    """The script on n forked ranks with an agent's variables; `kill` is (rank, step) of a SIGKILL.

    Returns each rank's globals that are plain numbers.
    """

    def rank_main() -> dict[str, Any]:
        def at_step(step: int) -> None:
            if kill == (int(os.environ["RANK"]), step):
                os.kill(os.getpid(), 9)

        found = run_script(path, words, at_step)
        return {name: value for name, value in found.items() if isinstance(value, (int, float))}

    facts = env.WorkerEnv("example", run_dir, attempt, node_rank=0, nnodes=1, device="cpu")
    return run_ranks(rank_main, n, timeout_s=60, environ=facts.to_environ(), after_failure_s=0.5)
