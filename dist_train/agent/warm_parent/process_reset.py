"""Turn a fork into what a newly started interpreter would be.

Kept from its parent are the imported modules, the early variables (early_variables) and the interpreter's
seed of hashes, which all ranks of an attempt then share.
"""

from __future__ import annotations

import fcntl
import io
import multiprocessing
import os
import random
import sys
import tempfile
from collections.abc import Container, Iterable, Mapping
from typing import Any

from dist_train import env
from dist_train.agent.warm_parent.descriptor_owners import disown_descriptors
from dist_train.agent.warm_parent.process_environ import show_environ

_SHOWN_FIRST = ("DIST_TRAIN_", "TORCHELASTIC_", *env.TORCHRUN_NAMES)
_STREAMS = 3  # stdin, stdout and stderr, which stay open until they are replaced


def reset_process(environ: Mapping[str, str], folder: str, descriptors: Mapping[int, int]) -> None:
    """Give this fork its environment, working directory, streams, seeds and descriptors, and no others.

    Args:
        folder: the working directory.
        descriptors: number -> the open descriptor that it is to be; stdin is the null device unless given.
    """
    _set_descriptors(descriptors)
    os.environ.clear()
    os.environ.update(environ)
    show_environ(environ, _SHOWN_FIRST)
    os.chdir(folder)
    _open_streams()
    _draw_new_seeds()
    tempfile.tempdir = None  # TMPDIR may have been read
    multiprocessing.current_process().authkey = os.urandom(32)


def _set_descriptors(descriptors: Mapping[int, int]) -> None:
    disown_descriptors()
    null = os.open(os.devnull, os.O_RDONLY)
    wanted = {0: null, **descriptors}
    copies = {target: _copy_beside(given, wanted) for target, given in wanted.items()}
    _close_all_but(copies.values())
    for target, copy in copies.items():
        os.dup2(copy, target)
        os.close(copy)


def _copy_beside(given: int, targets: Container[int]) -> int:
    """A copy at a number that is no target: the lowest, as a limit of open files may be as low."""
    number = _STREAMS
    while (number := fcntl.fcntl(given, fcntl.F_DUPFD_CLOEXEC, number)) in targets:
        number += 1
    return number


def _close_all_but(kept: Iterable[int]) -> None:
    first = _STREAMS
    for number in sorted(kept):
        os.closerange(first, number)
        first = number + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


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
