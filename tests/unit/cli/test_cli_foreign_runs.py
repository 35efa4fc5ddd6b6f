"""Runs of other users: never the newest run here, never resumed, and one that is closed hides no other."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dist_train.cli.run.find_run import find_run
from dist_train.errors import NotFoundError

NOBODY = 65534


@pytest.fixture
def as_another_user(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on, everything that there is belongs to somebody else."""
    uid = os.geteuid()
    return lambda: monkeypatch.setattr(os, "geteuid", lambda: uid + 1)


@contextmanager
def without_rights() -> Iterator[None]:
    """Root may read everything, so it becomes nobody for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def shared(make_run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of everybody, with the runs `open-1` and `closed-1`, of which the second may not be read."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.chdir(folder)
    opened, closed = (
        make_run(name, root=folder / "runs").began().log(0, "a line").finished().run
        for name in ("open-1", "closed-1")
    )
    folder.chmod(0o755)
    for path in (folder / "runs", opened.path, *opened.path.rglob("*")):
        path.chmod(0o755)
        if os.geteuid() == 0 and path.name != "runs":
            os.chown(path, NOBODY, NOBODY)
    closed.path.chmod(0o700 if os.geteuid() == 0 else 0)
    yield folder
    closed.path.chmod(0o700)
    shutil.rmtree(folder)


def test_a_run_of_another_user_is_not_resumed(
    make_run: Callable[..., Any], dist_train: Any, as_another_user: Callable[[], None]
) -> None:
    run = make_run("a-1").run
    as_another_user()
    for words in (["a-1"], [run.path], ["a-1", "--dry-run"]):
        said = dist_train("resume", *words)
        assert said.code == 78
        assert f"error: {run.path} belongs to " in said.err
        assert f"dist-train resume {run.path}" in said.err
    assert not (run.plan / "agents.json").exists()
    assert dist_train("status", "a-1").code == 0, "reading it is no harm"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", ["job.json", "config.yaml", "plan"])
def test_a_file_that_another_user_put_into_ones_own_run_is_refused_too(
    make_run: Callable[..., Any], dist_train: Any, name: str
) -> None:
    run = make_run("a-1").run
    run.plan.mkdir(exist_ok=True)
    run.config.touch()
    os.chown(run.path / name, NOBODY, NOBODY)
    said = dist_train("resume", "a-1")
    assert (said.code, f"{run.path / name} belongs to nobody, not to root" in said.err) == (78, True)


def test_the_newest_run_is_ones_own(
    make_run: Callable[..., Any], dist_train: Any, as_another_user: Callable[[], None]
) -> None:
    make_run("theirs-1")
    as_another_user()
    with pytest.raises(NotFoundError, match="no run of yours") as caught:
        find_run("@last")
    assert "theirs-1" in str(caught.value)
    for verb in ("status", "resume", "cancel", "logs"):
        assert dist_train(verb).code == 66


@pytest.mark.parametrize("verb", ["list", "status", "logs", "cancel"])
def test_a_closed_run_of_somebody_else_is_skipped_and_named(shared: Path, dist_train: Any, verb: str) -> None:
    with without_rights():
        said = dist_train(verb)
    assert said.code == 0, said
    assert "skipped: runs/closed-1 cannot be read" in said.err
    assert ("a line" if verb == "logs" else "open-1") in said.out


@pytest.mark.parametrize("verb", ["status", "logs", "cancel", "resume"])
def test_a_closed_run_by_its_name_is_an_error_of_rights(shared: Path, dist_train: Any, verb: str) -> None:
    with without_rights():
        said = dist_train(verb, "closed-1")
    assert said.code == 78
    assert "closed-1 cannot be read or written: permission denied" in said.err
    assert "Traceback" not in said.err


def test_records_that_only_their_owner_may_read(shared: Path, dist_train: Any) -> None:
    events = shared / "runs" / "open-1" / "events.jsonl"
    os.chown(events, os.geteuid(), -1)
    events.chmod(0o600 if os.geteuid() == 0 else 0)
    with without_rights():
        listed, asked = dist_train("list"), dist_train("status", "open-1")
    assert (listed.code, "open-1  unknown" in listed.out) == (0, True), listed
    assert (asked.code, "events.jsonl" in asked.out) == (69, True), asked


def test_all_dirs_names_what_it_could_not_enter(shared: Path, dist_train: Any) -> None:
    with without_rights():
        said = dist_train("list", "--all-dirs", ".")
    assert said.code == 0
    assert "open-1" in said.out
    assert "closed-1 cannot be read" in said.err
