"""The end of a child is seen also where the kernel has no pidfd_open, or a container runtime refuses it."""

from __future__ import annotations

import errno
import os
import select
import subprocess
import threading

import pytest

from dist_train.agent.workers.exit_descriptor import exit_descriptor


def refused(pid: int) -> int:
    raise OSError(errno.ENOSYS, "Function not implemented")


@pytest.mark.parametrize("kernel", ["with", "without", "of another libc"])
def test_it_is_readable_once_the_child_has_ended(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kernel == "without":
        monkeypatch.setattr(os, "pidfd_open", refused)
    if kernel == "of another libc":
        monkeypatch.delattr(os, "pidfd_open")
    with subprocess.Popen(["sh", "-c", "read line; exit 3"], stdin=subprocess.PIPE) as child:
        descriptor = exit_descriptor(child.pid)
        assert select.select([descriptor], [], [], 0.2)[0] == []
        assert child.stdin is not None
        child.stdin.close()
        assert select.select([descriptor], [], [], 10)[0] == [descriptor]
        assert child.wait() == 3, "whoever watches reaps it"
    os.close(descriptor)
    for thread in threading.enumerate():
        if thread.name == f"exit-of-{child.pid}":
            thread.join(timeout=10)
            assert not thread.is_alive()
