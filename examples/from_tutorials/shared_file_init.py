"""`init_method="file:///shared/file"`: the stale file of the last run.

python shared_file_init.py

The trap: the file must not exist, and only a successful run removes it. After a crash the next run reads
the dead run's addresses in it, and depending on timing it fails, hangs or even works. `dt.init` detects a
stale file and names it in the error; under `dist-train launch --init-method file:///shared/file` there is
nothing to remove: each attempt uses a file of its own.
"""

import multiprocessing
import os
import signal
import tempfile
from datetime import timedelta
from pathlib import Path
from unittest import mock

import torch.distributed as torch_dist

import dist_train as dt

FIRST_OF_TWO = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}


def crashed_run(file: Path) -> None:
    """Two processes meet in the file; then both are killed."""

    def one(rank: int) -> None:
        try:
            torch_dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
            torch_dist.barrier()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)

    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=one, args=(rank,)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def tutorial(file: Path, timeout_s: float) -> None:
    """The tutorial's call, with a shorter time-out."""
    torch_dist.init_process_group(
        "gloo", init_method=f"file://{file}", rank=0, world_size=2, timeout=timedelta(seconds=timeout_s)
    )


def ours(file: Path, timeout_s: float) -> None:
    """Rank and world size come from the environment, as launchers set it."""
    with mock.patch.dict(os.environ, FIRST_OF_TWO):
        dt.init(init_method=f"file://{file}", timeout_s=timeout_s).close()


if __name__ == "__main__":
    for form in (tutorial, ours):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "meeting"
            crashed_run(file)
            try:
                form(file, timeout_s=1)
            except Exception as error:
                print(f"{form.__name__}: {type(error).__name__}: {error}")
