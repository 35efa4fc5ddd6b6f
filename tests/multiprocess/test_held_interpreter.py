"""An import that holds an agent's interpreter for longer than heartbeats may cease loses no attempt."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dist_train import env
from dist_train.rundir import RunDir

pytestmark = pytest.mark.multiprocess
LOST_S, HELD_S = 2.0, 6
# An agent whose first import of torch keeps the interpreter's lock, as dlopen does on a slow file system. Its
# hold begins when the other node waits for its heartbeats, if it ever does before the import.
AGENT = f"""
import ctypes, os, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM, signal.SIGUSR2}})
from pathlib import Path
from dist_train.agent import main, node, timeouts
timeouts.HEARTBEAT_S, timeouts.HEARTBEAT_LOST_S = 0.3, {LOST_S}
folder, held = Path(sys.argv[1]), sys.argv[2]
me = os.environ["DIST_TRAIN_NODE_RANK"]
connect, leave, loaded = node.connect, os._exit, set()

def noted_connect(*args, **options):
    connection = connect(*args, **options)
    (folder / f"connected-{{me}}").touch()
    loaded.update(sys.modules)
    return connection

def noted_leave(code):
    late = [name for name in set(sys.modules) - loaded
            if name.partition(".")[0] not in sys.stdlib_module_names
            or str(getattr(sys.modules[name], "__file__", "")).endswith(".so")]
    (folder / f"late-{{me}}").write_text(" ".join(sorted(late)))
    leave(code)

class Hold:
    done = False
    def find_spec(self, name, path=None, target=None):
        if name == "torch" and me == held and not self.done:
            self.done = True
            deadline = time.monotonic() + 6
            while not (folder / f"connected-{{1 - int(me)}}").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            ctypes.PyDLL(None).sleep({HELD_S})

node.connect, os._exit = noted_connect, noted_leave
sys.meta_path.insert(0, Hold())
main.main(["script", str(folder / "train.py")])
"""


def agent(run: RunDir, folder: Path, node: int, held: int) -> subprocess.Popen[bytes]:
    environ = {
        **os.environ,
        env.RUN_DIR: str(run.path),
        env.RUN_ID: f"held-{os.getpid()}-{folder.name}",
        env.LAUNCHER: "local",
        env.NNODES: "2",
        env.NPROC_PER_NODE: "1",
        env.NODE_RANK: str(node),
        env.RDZV: f"file://{run.control}/rdzv",
    }
    command = [sys.executable, "-P", "-c", AGENT, str(folder), str(held)]
    return subprocess.Popen(
        command, env=environ, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


@pytest.mark.proves(
    "An import of torch that holds an agent's interpreter for three heartbeat limits loses no attempt; "
    "nothing that could hold it is imported later",
    limits="two simulated nodes, shortened limits",
)
@pytest.mark.proof
@pytest.mark.parametrize("held", [0, 1])
def test_an_import_that_holds_the_interpreter_loses_no_attempt(tmp_path: Path, held: int) -> None:
    (tmp_path / "train.py").write_text("print('trained')\n")
    run = RunDir(tmp_path / "run")
    run.create()
    (run.control / "key").write_bytes(b"k" * 32)
    agents = [agent(run, tmp_path, node, held) for node in (0, 1)]
    try:
        texts = [process.communicate(timeout=120)[0].decode() for process in agents]
    finally:
        for process in agents:
            process.kill()
            process.wait()
    assert [process.returncode for process in agents] == [0, 0], texts
    assert [(tmp_path / f"late-{node}").read_text() for node in (0, 1)] == ["", ""]
