"""`init_method="tcp://host:port"`: the second terminal that was never opened.

python tcp_init.py

The traps: the rank stands in the code (`rank=0` in every copy of it), the port is a guess that may be
taken, and who waits for a process that does not come waits 30 minutes and is told how many, not who.
`dt.init` takes the rank from the launcher (or from RANK and WORLD_SIZE), and names who is missing every
few seconds. `dist-train launch` needs no address at all; `--init-method tcp://HOST:PORT` is there too.
"""

import os
import socket
from datetime import timedelta
from unittest import mock

import torch.distributed as torch_dist

import dist_train as dt

FIRST_OF_TWO = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}


def free_port() -> int:
    """A port that nobody has, a moment ago."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def tutorial(port: int, timeout_s: float) -> None:
    """As it is written, except for the time that it waits."""
    torch_dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=0,
        world_size=2,
        timeout=timedelta(seconds=timeout_s),
    )


def ours(port: int, timeout_s: float) -> None:
    """Who this is stands in the environment, where launchers put it."""
    with mock.patch.dict(os.environ, FIRST_OF_TWO):
        dt.init(init_method=f"tcp://127.0.0.1:{port}", timeout_s=timeout_s).close()


if __name__ == "__main__":
    for form in (tutorial, ours):
        try:
            form(free_port(), timeout_s=3)
        except Exception as error:
            print(f"{form.__name__}: {type(error).__name__}: {error}")
