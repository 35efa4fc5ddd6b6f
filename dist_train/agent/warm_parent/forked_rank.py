"""What a rank resets after the fork, so that it is what a newly started interpreter would be.

Kept from the warm parent are its modules, the early variables (early_variables) and the interpreter's seed of
hashes, which all ranks of an attempt then share.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dist_train import env
from dist_train.agent.warm_parent.process_environ import show_environ

_SHOWN_FIRST = ("DIST_TRAIN_", "TORCHELASTIC_", *env.TORCHRUN_NAMES)
_REPARENTED_S = 10.0


class RankForked(BaseException):
    """Raised in a rank after its fork: it leaves the agent's frames, and worker_main runs it.

    Attributes:
        argv: the arguments of worker_main.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        super().__init__("a forked rank")
        self.argv = list(argv)


@dataclass(frozen=True)
class RankStart:
    """One rank to fork.

    Attributes:
        argv: the arguments of worker_main; the first is the agent's pid.
        environ: its whole environment.
        folder: its working directory.
    """

    argv: list[str]
    environ: dict[str, str]
    folder: str


def become_rank(start: RankStart, stdout: int, stderr: int, go: int) -> None:
    """Turn this fork into the rank; returns once the agent has taken it over, or ends the process.

    Args:
        stdout: descriptor of the pipe for its output.
        stderr: likewise.
        go: descriptor from which the agent lets it read a byte when it knows of this rank.
    """
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for ours, theirs in ((null, 0), (stdout, 1), (stderr, 2)):
        os.dup2(ours, theirs)
    if os.read(go, 1) != b"g" or not _is_child_of(int(start.argv[0])):
        os._exit(1)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    _set_environ(start.environ)
    os.chdir(start.folder)
    _open_streams()
    _draw_new_seeds()
    tempfile.tempdir = None  # TMPDIR may have been read
    multiprocessing.current_process().authkey = os.urandom(32)
    sys.orig_argv[:] = [sys.executable, "-u", "-P", "-m", "dist_train.agent.workers.worker_main", *start.argv]


def _is_child_of(agent: int) -> bool:
    """Whether the agent has become this process's parent; it does when the process between has ended."""
    deadline = time.monotonic() + _REPARENTED_S
    while os.getppid() != agent:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def _set_environ(environ: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environ)
    show_environ(environ, _SHOWN_FIRST)


def _open_streams() -> None:
    """Make standard streams for the new descriptors, as `python -u` does (create_stdio, pylifecycle.c)."""
    for name, descriptor, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        stream = _stream(descriptor, f"<{name}>", mode, getattr(sys, name))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _stream(descriptor: int, name: str, mode: str, before: Any) -> Any:
    binary: Any = open(descriptor, f"{mode}b", buffering=-1 if mode == "r" else 0, closefd=False)  # noqa: SIM115
    (binary.raw if mode == "r" else binary).name = name
    text: Any = io.TextIOWrapper(
        binary, encoding=before.encoding, errors=before.errors, newline="\n", write_through=True
    )
    text.mode = mode
    return text


def _draw_new_seeds() -> None:
    """Give the global generators the fresh seeds that they have in a new process."""
    random.seed()
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed()
    if torch is not None:
        torch.default_generator.seed()
