"""Main function of a rank that `run_ranks` starts: environment, stack dump on request, answer."""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from dist_train import env
from dist_train.jobs.parent_death_signal import end_with_parent

VALUE, ERROR = b"v", b"e"

# Variables of another launcher, or of a run around this test.
_FOREIGN = ("DIST_TRAIN_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "PALS_", "TORCHELASTIC_")


def rank_environ(rank: int, n: int, port: int) -> dict[str, str]:
    """This process's environment with the variables that torchrun sets for one rank."""
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_FOREIGN) and name not in env.TORCHRUN_NAMES
    }
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": n, "LOCAL_WORLD_SIZE": n}
    variables |= {"GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1, "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    # The parent serves the store, as torchrun's agent does: every rank is a client.
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    return {
        **own,
        **{name: str(value) for name, value in variables.items()},
        "MASTER_ADDR": "127.0.0.1",
        **agent,
    }


def rank_main(
    fn: Callable[..., Any], args: tuple[Any, ...], environ: dict[str, str], stack: str, answers: Connection
) -> None:
    """Run the function; send its value, or the traceback of its exception."""
    # No ranks remain when the test is killed.
    end_with_parent(os.getppid(), signal.SIGKILL)
    with open(stack, "w") as file:
        faulthandler.register(signal.SIGUSR1, file=file, all_threads=True, chain=False)
        os.environ.clear()
        os.environ.update(environ)
        answers.send_bytes(_answer(fn, args))
        answers.close()
        sys.stdout.flush()
        sys.stderr.flush()


def _answer(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    try:
        import torch

        torch.set_num_threads(1)
        value = fn(*args)
        _close_run(failed=False)
        return VALUE + pickle.dumps(value)
    except BaseException:
        text = traceback.format_exc()
        _close_run(failed=True)
        return ERROR + text.encode()


def _close_run(*, failed: bool) -> None:
    """Close an open run: processes of multiprocessing skip atexit, which otherwise does."""
    module = sys.modules.get("dist_train.distributed.run")
    run = module.current() if module is not None else None
    if run is not None:
        run.close(failed=failed)
