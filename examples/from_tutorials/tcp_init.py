"""`init_method="tcp://host:port"`: a process that never comes.

python tcp_init.py

The traps: the rank is hard-coded (`rank=0` in every copy of the script), the port may be in use, and a
missing process is reported after 30 minutes, by number and not by name. `dt.init` takes the rank from the
launcher (or from RANK and WORLD_SIZE), and logs the missing ranks every few seconds. `dist-train launch`
needs no address at all; `--init-method tcp://HOST:PORT` sets one.
"""

import os
import socket
from datetime import timedelta
from unittest import mock

import torch.distributed as torch_dist

import dist_train as dt

FIRST_OF_TWO = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def tutorial(port: int, timeout_s: float) -> None:
    """The tutorial's call, with a shorter time-out."""
    torch_dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=0,
        world_size=2,
        timeout=timedelta(seconds=timeout_s),
    )


def ours(port: int, timeout_s: float) -> None:
    """Rank and world size come from the environment, as launchers set it."""
    with mock.patch.dict(os.environ, FIRST_OF_TWO):
        dt.init(init_method=f"tcp://127.0.0.1:{port}", timeout_s=timeout_s).close()


if __name__ == "__main__":
    for form in (tutorial, ours):
        try:
            form(free_port(), timeout_s=3)
        except Exception as error:
            print(f"{form.__name__}: {type(error).__name__}: {error}")
