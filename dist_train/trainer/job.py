"""One training from its config to its result: what the entrypoint does once the ranks are together."""

from __future__ import annotations

from dist_train.config.schema import RunConfig
from dist_train.distributed.run import Run
from dist_train.rundir.directory import RunDir
from dist_train.rundir.result import Result
from dist_train.trainer.announce import start_line
from dist_train.trainer.build import build
from dist_train.trainer.device_memory import device_memory, memory_line
from dist_train.trainer.finish import write_outcome


def train(config: RunConfig, run: Run, run_dir: RunDir, grace_s: float | None = None) -> Result | None:
    """Build, fit, write result.json; the result is rank 0's, None on the others. Collective.

    Args:
        run_dir: where records and checkpoints go.
        grace_s: seconds from a stop signal to the kill; None takes the config's.

    Raises:
        Preempted: a stop was agreed; what is saved is said in the error.
    """
    if run.is_main:
        run_dir.create()
    trainer = build(config, run, run_dir, config.resilience.grace_s if grace_s is None else grace_s)
    if run.is_main:
        name = config.name or run_dir.path.name
        strategy = trainer.stepper.strategy.name
        line = start_line(config, name, strategy, trainer.extent, run.world_size, run.device)
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
