"""A fork becomes another process: its descriptors are those given, and nobody else closes them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, os, resource, sys
from dist_train.agent.warm_parent.process_reset import reset_process

listener, limit = int(sys.argv[1]), int(sys.argv[2])
answer = os.dup(1)
given = {}
for target in (1, 2, listener):
    read, write = os.pipe()
    os.write(write, str(target).encode())
    os.close(write)
    given[target] = read
for _ in range(12):
    os.dup(2)  # of its parent: to be closed
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
os.dup2(answer, limit - 1)  # to be closed, at the highest number that there is
given[30] = answer
reset_process(dict(os.environ), os.getcwd(), given)
opened = [number for number in range(1100) if os.path.exists(f"/proc/self/fd/{number}")]
there = {target: os.read(target, 10).decode() for target in (1, 2, listener)}
os.write(30, json.dumps([opened, there]).encode())
os._exit(0)
"""


@pytest.mark.parametrize("limit", [40, 256, 259, 1024])
@pytest.mark.parametrize("listener", [3, 4, 12, 20])
def test_the_descriptors_are_those_given_whatever_the_limit_of_open_files(listener: int, limit: int) -> None:
    words = [sys.executable, "-c", PROGRAM, str(listener), str(limit)]
    result = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    opened, there = json.loads(result.stdout)
    assert opened == [0, 1, 2, listener, 30]
    assert there == {"1": "1", "2": "2", str(listener): str(listener)}


OWNERS = """
import gc, os, selectors, socket, sys
from dist_train.agent.warm_parent.process_reset import reset_process

first = os.dup(1)  # the number that a script's first file gets
os.close(first)
owner = {
    "socket": lambda: socket.socket(),
    "unbuffered": lambda: open(os.devnull, "rb", buffering=0),
    "reader": lambda: open(os.devnull, "rb"),
    "writer": lambda: open("left.txt", "w"),
    "selector": lambda: selectors.DefaultSelector(),
}[sys.argv[1]]()
assert owner.fileno() == first
if sys.argv[1] == "writer":
    owner.write("of the parent, which writes it itself")
if sys.argv[2] == "stale":
    os.close(first)
if os.fork() == 0:
    reset_process(dict(os.environ), os.getcwd(), {1: 1, 2: 2})
    script = open("script.txt", "w")
    assert script.fileno() == first
    script.write("not flushed")
    del owner
    gc.collect()
    script.close()
    os._exit(0)
os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.parametrize("closed", ["stale", "open"])
@pytest.mark.parametrize("kind", ["socket", "unbuffered", "reader", "writer", "selector"])
def test_what_a_fork_inherits_does_not_close_its_files(tmp_path: Path, kind: str, closed: str) -> None:
    words = [sys.executable, "-c", OWNERS, kind, closed]
    result = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "script.txt").read_text() == "not flushed"
    if kind == "writer":
        assert (tmp_path / "left.txt").read_text() == ""
