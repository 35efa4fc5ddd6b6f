"""Run one rank of a YAML config: `python -P -m dist_train.entrypoint CONFIG.yaml [--folder DIR]`.

Exit codes are those of the error tree: 75 stopped and saved, 74 a checkpoint could not be written.
An exception of the user's own code is not caught: its traceback is printed.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from dist_train.config.load import load_config
from dist_train.env import WorkerEnv
from dist_train.errors import DistTrainError, ExitCode, Preempted
from dist_train.jobs.frozen_imports import frozen_imports
from dist_train.rundir.directory import RunDir


def main(argv: Sequence[str] | None = None) -> None:
    """Run one rank. Raises SystemExit with its exit code, in the context of the error: that gets recorded."""
    arguments = _parse(argv)
    if arguments.folder is not None:
        sys.path.insert(0, str(arguments.folder))
    stopped: int | None = None
    try:
        _run(arguments.config)
    except Preempted as error:
        stopped = int(error.exit_code)
    except DistTrainError as error:
        if error.exit_code == ExitCode.INTERNAL:
            traceback.print_exc()
        else:
            print(error, file=sys.stderr, flush=True)
        sys.exit(int(error.exit_code))
    sys.exit(stopped)  # not in the context of an error: a stop is none


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="dist_train.entrypoint", allow_abbrev=False)
    parser.add_argument("config", type=Path, metavar="CONFIG.yaml")
    parser.add_argument("--folder", type=Path, help="the folder of the user's own config, first on sys.path")
    return parser.parse_args(argv)


def _run(path: Path) -> None:
    config = load_config(path).config
    # Before anything of the user's is imported: these are objects for the life of the process.
    with frozen_imports():
        import torch._dynamo  # noqa: F401 - every optimizer of torch imports it: here it takes less

        from dist_train.resilience.session import init
        from dist_train.trainer.run_training import set_up_process, train

    set_up_process(config)
    worker = WorkerEnv.from_env()
    with init(
        seed=config.seed,
        timeout_s=config.resilience.init_timeout_s,
        collective_timeout_s=config.resilience.collective_timeout_s,
    ) as run:
        run_dir = RunDir(worker.run_dir if worker and worker.run_dir else _folder_of(path))
        try:
            train(config, run, run_dir, worker.grace_s if worker else None)
        except Preempted as error:
            if run.is_main:
                print(error, flush=True)
            # All ranks stop at the same step: they leave together, as after a good end.
            run.close()
            raise


def _folder_of(path: Path) -> Path:
    """The run directory without an agent: the config's own folder if it lies in a run, else runs/<stem>."""
    return path.parent if path.name == "config.yaml" else Path("runs") / path.stem


if __name__ == "__main__":
    main()
