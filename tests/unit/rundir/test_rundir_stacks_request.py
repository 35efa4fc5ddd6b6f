"""The request that `dist-train stacks` leaves in a run directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from dist_train.errors import UnavailableError
from dist_train.rundir import RunDir
from dist_train.rundir.requests.stacks_request import (
    answers_folder,
    ask_for_stacks,
    read_requests,
    remove_request,
)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "run")
    run.control.mkdir(parents=True)
    return run


def test_all_who_ask_are_seen_and_leave_nothing(run: RunDir) -> None:
    one, other = ask_for_stacks(run, [3]), ask_for_stacks(run)
    assert {request.id: request.ranks for request in read_requests(run)} == {one.id: (3,), other.id: ()}
    remove_request(run, one)
    assert list(read_requests(run)) == [other]
    assert run.stacks_request.exists(), "node 0 may not have seen the other yet"
    remove_request(run, other)
    assert not list(run.control.iterdir())


@pytest.mark.parametrize("text", ["{}", "[]", '{"id": 1, "ranks": 7}', '{"id": "a", "ranks": ["x"]}', "{"])
def test_what_is_no_request_is_passed_over(run: RunDir, text: str) -> None:
    answers_folder(run, "odd").mkdir()
    (answers_folder(run, "odd") / "request.json").write_text(text)
    assert not list(read_requests(run))


def test_a_run_directory_that_takes_no_request_is_named(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    run.control.write_text("")
    with pytest.raises(UnavailableError, match="cannot be asked for stacks: Not a directory") as caught:
        ask_for_stacks(run)
    assert caught.value.cause is not None
    assert str(run.control) in caught.value.cause
