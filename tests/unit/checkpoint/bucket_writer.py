"""Does a piece of work with checkpoints at a URL in a process of its own, which a test may kill.

One process imports torch and forks the others, before the library of the object store has threads.

`python bucket_writer.py` reads `VERB URL` lines; for each it prints {"pid": …}, waits for a line, and prints
{"value": …} or {"error": …}, then {"status": …}.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def main() -> None:
    import torch

    torch.set_num_threads(1)
    # What each of them would import, which takes a second: all but the library's own threads.
    import obstore.store  # noqa: F401

    with tempfile.TemporaryDirectory() as folder:
        start(folder)
        go_on(folder)
        look(folder)

    for line in iter(_line, ""):
        verb, url = line.split()
        pid = os.fork()
        if pid == 0:
            _tell({"pid": os.getpid()})
            _line()
            try:
                _tell({"value": VERBS[verb](url)})
            except BaseException as error:
                _tell({"error": f"{type(error).__name__}: {error}"})
            os._exit(0)
        _tell({"status": os.waitpid(pid, 0)[1]})


def start(url: str) -> dict[str, Any]:
    """Steps 1 and 2."""
    from checkpoint_cases import saved_run

    return {str(step): found for step, found in saved_run(url, 2, keep_last=2).items()}


def go_on(url: str) -> dict[str, Any]:
    """Load the newest, make one step, save it; what is older than two goes."""
    from checkpoint_cases import Training, manager

    training, manage = Training(seed=9), manager(url, attempt=1, keep_last=2)
    restored = manage.load_latest(training.state)
    assert restored is not None
    loaded = training.weights()
    training.train()
    saved = manage.save(restored.step + 1, training.state)
    return {"restored": restored.step, "loaded": loaded, "saved": saved.weights_hash}


def look(url: str) -> dict[str, Any]:
    """What is there."""
    from dist_train.checkpoint.store.open_storage import open_storage
    from dist_train.checkpoint.store.verify import list_checkpoints, verify_checkpoint

    found = list_checkpoints(url)
    return {
        "steps": [one.step for one in found],
        "problems": [problem for one in found for problem in verify_checkpoint(one.location).problems],
        "left": [name for name in open_storage(url).names() if name.startswith((".", "quarantine"))],
    }


VERBS: dict[str, Callable[[str], dict[str, Any]]] = {"start": start, "go_on": go_on, "look": look}


def _line() -> str:
    """One line of stdin; read byte by byte, since the forked process reads the next one."""
    found = b""
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        found += byte
    return found.decode()


def _tell(record: Mapping[str, Any]) -> None:
    os.write(1, json.dumps(record).encode() + b"\n")


class Writers:
    """The test's side: runs the work, one process each."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, **environ, "PYTHONPATH": str(Path(__file__).parent)},
        )

    def run(
        self, verb: str, url: str, meet: Callable[[int], None] = lambda pid: None
    ) -> dict[str, Any] | None:
        """Do it; None where the process was killed.

        Args:
            meet: called with the process's id before it begins.
        """
        self._say(f"{verb} {url}")
        meet(int(self._hear()["pid"]))
        self._say("go")
        found = self._hear()
        if "status" in found:
            assert found["status"] == 9, found
            return None
        ended = self._hear()
        if "error" in found:
            raise AssertionError(found["error"])
        # It may be killed by the last request, with the answer given.
        assert ended["status"] in (0, 9), ended
        return dict(found["value"])

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process that forks the writers has ended"
        return dict(json.loads(line))


if __name__ == "__main__":
    main()
