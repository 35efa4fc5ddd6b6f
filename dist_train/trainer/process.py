"""What a rank's process needs before groups are formed and before any kernel runs."""

from __future__ import annotations

import logging

import torch

from dist_train.config.schema import RunConfig
from dist_train.distributed.determinism import apply
from dist_train.env import WorkerEnv


def set_up_process(config: RunConfig) -> None:
    """Logging, threads, deterministic mode."""
    logging.basicConfig(level=config.logging.level.upper(), format="%(levelname)s %(name)s: %(message)s")
    worker = WorkerEnv.from_env()
    device = worker.device if worker else "auto"
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    # Threads are part of the bits. The agent sets them; without an agent this line does.
    threads = config.threads_per_rank or (worker.threads_per_rank if worker else None)
    if threads or device == "cpu":
        torch.set_num_threads(threads or 1)
    apply(config.deterministic, device)
