"""One training from its config to its result: config -> components -> Trainer -> fit -> result.json."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import torch

from dist_train.config.schema import RunConfig
from dist_train.distributed.determinism import apply
from dist_train.distributed.run import Run
from dist_train.env import WorkerEnv
from dist_train.rundir.directory import RunDir
from dist_train.rundir.result import Result
from dist_train.trainer.build import build
from dist_train.trainer.build_components import make_components
from dist_train.trainer.callback import Callback
from dist_train.trainer.console_messages import start_line
from dist_train.trainer.records.memory_use import device_memory, memory_line
from dist_train.trainer.write_result import write_outcome


def set_up_process(config: RunConfig) -> None:
    """Set logging, threads, determinism and precision, before groups are formed and any kernel runs."""
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
    # Said in any case: some container images turn TF32 on by a variable.
    torch.set_float32_matmul_precision(config.trainer.matmul_precision)
    torch.backends.cudnn.allow_tf32 = config.trainer.conv_tf32


def train(
    config: RunConfig,
    run: Run,
    run_dir: RunDir,
    grace_s: float | None = None,
    callbacks: Sequence[Callback] = (),
) -> Result | None:
    """Build, fit, write result.json; the result is rank 0's, None on the others. Collective.

    Args:
        run_dir: where records and checkpoints go.
        grace_s: seconds from a stop signal to the kill; None takes the config's.
        callbacks: called after those of the config; the same on all ranks.

    Raises:
        Preempted: a stop was agreed; the error names the step that is saved.
    """
    if run.is_main:
        run_dir.create()
    components = make_components(config)
    components = replace(components, callbacks=(*components.callbacks, *callbacks))
    grace_s = config.resilience.grace_s if grace_s is None else grace_s
    trainer = build(config, components, run, run_dir, grace_s)
    if run.is_main:
        name = config.name or run_dir.path.name
        strategy = trainer.stepper.strategy.name
        line = start_line(config, name, strategy, trainer.horizon, run.place, run.device)
        print(line, flush=True)
    try:
        end = trainer.fit()
    finally:
        trainer.sinks.close()
    if not run.is_main:
        return None
    memory = memory_line(device_memory(run.device), trainer.stepper.strategy.name)
    if memory is not None:
        print(memory, flush=True)
    assert trainer.saves.newest is not None  # the last step is always saved
    return write_outcome(run, run_dir, end, trainer.saves.newest, trainer.pace)
