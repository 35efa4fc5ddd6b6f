"""Reading log files while they grow."""

from __future__ import annotations

from pathlib import Path

import pytest

from dist_train.errors import NotFoundError
from dist_train.jobs import log_files
from dist_train.jobs.log_files import attempts, follow_logs
from dist_train.rundir import RunDir
from dist_train.rundir.log_text import output_stream


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setattr(log_files, "_POLL_S", 0.0)
    made = RunDir(tmp_path / "a")
    made.create()
    return made


def write(run: RunDir, attempt: int, rank: int, text: str) -> None:
    run.attempt_logs(attempt).mkdir(exist_ok=True)
    with (run.attempt_logs(attempt) / f"rank-{rank}.log").open("a") as file:
        file.write(text)


def dead() -> bool:
    return False


def test_ranks_in_order_of_number(run: RunDir) -> None:
    for rank in (10, 2, 0):
        write(run, 0, rank, f"i am {rank}\n")
    assert list(follow_logs(run, None, None, False, dead)) == [
        "[rank 0] i am 0",
        "[rank 2] i am 2",
        "[rank 10] i am 10",
    ]


def test_half_a_line_waits_for_its_end(run: RunDir) -> None:
    write(run, 0, 0, "one\ntw")
    steps = iter([True, True, False])

    def alive() -> bool:
        going = next(steps)
        if not going:
            write(run, 0, 0, "o\n")
        return going

    assert list(follow_logs(run, 0, None, True, alive)) == ["one", "two"]


def test_following_waits_for_the_first_file(run: RunDir) -> None:
    steps = iter([True, True, False])

    def alive() -> bool:
        going = next(steps)
        if not going:
            write(run, 0, 0, "late\n")
        return going

    assert list(follow_logs(run, 0, None, True, alive)) == ["late"]


def test_following_goes_on_into_the_next_attempt(run: RunDir) -> None:
    write(run, 0, 0, "first\n")
    steps = iter([True, False])

    def alive() -> bool:
        going = next(steps)
        if not going:
            write(run, 1, 0, "second\n")
        return going

    assert list(follow_logs(run, 0, None, True, alive)) == ["first", "second"]


def test_the_last_lines_of_an_attempt_are_read_after_the_next_has_begun(run: RunDir) -> None:
    write(run, 0, 0, "first\n")
    steps = iter([True, False])

    def alive() -> bool:
        going = next(steps)
        if not going:
            write(run, 0, 0, "Traceback: why it died\n")
            write(run, 1, 0, "second\n")
        return going

    assert list(follow_logs(run, 0, None, True, alive)) == ["first", "Traceback: why it died", "second"]


def test_missing_logs_are_named_with_the_existing_ones(run: RunDir) -> None:
    write(run, 0, 0, "x\n")
    write(run, 2, 0, "x\n")
    (run.logs / "attempt-notes").mkdir()
    assert attempts(run) == [0, 2]
    with pytest.raises(NotFoundError, match="no log of rank 5 in attempt 3") as caught:
        list(follow_logs(run, 5, 2, False, dead))
    assert "attempts with logs: 1, 3" in str(caught.value)


def test_bytes_that_are_no_text_are_shown_as_replacement_characters(run: RunDir) -> None:
    run.attempt_logs(0).mkdir()
    (run.attempt_logs(0) / "rank-0.log").write_bytes(b"\xff\xfe ok\r\n")
    assert list(follow_logs(run, 0, None, False, dead)) == ["\ufffd\ufffd ok"]


def test_of_a_progress_bar_the_last_state_is_a_line(run: RunDir) -> None:
    bar = "".join(f"\r{n}%" for n in range(101))
    write(run, 0, 0, f"begin\n{bar}\nend without a newline")
    assert list(follow_logs(run, 0, None, False, dead)) == ["begin", "100%", "end without a newline"]


def test_a_progress_bar_shows_while_it_grows(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_stream, "_UNFINISHED_S", 0.0)
    polls = iter(range(4))

    def alive() -> bool:
        poll = next(polls)
        write(run, 0, 0, f"\r{poll}%")
        return poll < 3

    # The second and third state come before the time at which a change is shown again.
    assert list(follow_logs(run, 0, None, True, alive)) == ["0%", "3%"]
