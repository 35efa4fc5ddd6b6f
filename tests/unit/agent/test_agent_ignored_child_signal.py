"""Who starts a command or an agent may ignore SIGCHLD: the kernel then keeps no exit code of a child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from dist_train.prewarm.agent_handle import ForkedAgent

PROGRAM = """
import os, runpy, signal, sys

def leave(code):
    os.write(1, b"\\n" + signal.getsignal(signal.SIGCHLD).name.encode())
    exit_now(0)

exit_now, os._exit = os._exit, leave
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
module, sys.argv[1:] = sys.argv[1], ["--help"]
try:
    runpy.run_module(module, run_name="__main__")
finally:
    sys.stdout.flush()
    leave(0)
"""


@pytest.mark.parametrize("module", ["dist_train.cli.main", "dist_train.agent", "dist_train.inference"])
def test_a_command_and_its_processes_see_how_their_children_end(module: str) -> None:
    words = [sys.executable, "-P", "-c", PROGRAM, module]
    result = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert result.stdout.splitlines()[-1:] == ["SIG_DFL"], result


def test_an_agent_whose_end_nobody_saw_has_not_succeeded() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    agent = ForkedAgent(lambda: pid)
    assert agent.wait(5) == -signal.SIGKILL
    agent.send_signal(signal.SIGTERM)  # to nobody
