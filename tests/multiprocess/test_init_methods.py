"""env://, tcp:// and file:// form the same group; each attempt uses a new shared file, which is removed."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from conftest import WORKLOADS, start

pytestmark = pytest.mark.multiprocess
SHORT = (WORKLOADS / "text.yaml", "trainer.steps=16")
SHAPE = ("--nodes", 2, "--gpus-per-node", 1, "--max-restarts", 1)
KILL = ("--env", "DIST_TRAIN_INJECT=kill:rank=1,step=9")


@pytest.mark.proves(
    "`env://`, `tcp://` and `file://` give the same bits, also after a restart; the file is fresh per "
    "attempt",
    limits="gloo",
)
@pytest.mark.proof
def test_all_init_methods_give_the_same_bits_also_after_a_restart(tmp_path: Path) -> None:
    shared = tmp_path / "shared" / "meet"
    shared.parent.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    hashes = set()
    for name, method in {
        "env": "env://",
        "tcp": f"tcp://127.0.0.1:{port}",
        "file": f"file://{shared}",
    }.items():
        finished = start(tmp_path, name, *SHAPE, "--init-method", method, *KILL, *SHORT)
        assert finished.cli.code == 0, finished.cli
        assert len(finished.events("attempt_started")) == 2
        hashes.add(finished.hashes)
    assert len(hashes) == 1
    assert list(shared.parent.iterdir()) == [], "the shared file is removed at the end, of each attempt"
