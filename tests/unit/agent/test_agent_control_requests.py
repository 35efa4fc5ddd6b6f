"""Node 0 hears `cancel` also after its look into control/ has failed (ESTALE of NFS)."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from dist_train.agent import node_zero
from dist_train.agent.node_zero import NodeZero
from dist_train.rundir import RunDir
from dist_train.rundir.lost_node import LostNode


class Recorder:
    """Node 0's records, of which only the later start is looked at."""

    superseded: str | None = None


def test_a_stale_handle_ends_no_listening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir(tmp_path / "run")
    run.create()
    looks = 0
    exists = Path.exists

    def stale_at_first(path: Path) -> bool:
        nonlocal looks
        if path == run.cancel_request:
            looks += 1
            if looks < 3:
                raise OSError(errno.ESTALE, "Stale file handle")
        return exists(path)

    monkeypatch.setattr(Path, "exists", stale_at_first)
    monkeypatch.setattr(node_zero, "_POLL_S", 0.01)
    seen: list[str] = []
    node = NodeZero.__new__(NodeZero)
    node._settings = SimpleNamespace(run=run, job="job.0")  # type: ignore[assignment]
    node._platform = SimpleNamespace(superseded_code=69)  # type: ignore[assignment]
    node._recorder = Recorder()  # type: ignore[assignment]
    node._server = SimpleNamespace(  # type: ignore[assignment]
        agent_ended=lambda lost: seen.append(f"lost {lost.node}"), end=lambda why, code: seen.append("end")
    )
    node._on_cancel = lambda: seen.append("cancel")
    run.cancel_request.touch()
    LostNode(1, -9).write(run.lost_node("job.0"))
    thread = threading.Thread(target=node._watch_control, daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while "cancel" not in seen and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    Recorder.superseded = "job.1"
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert seen == ["lost 1", "cancel", "end"], "each once"
