"""A rank's log: its limit, its parts, and a disk without room."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path

import pytest

from dist_train.agent.workers.rank_log import RankLog
from dist_train.agent.workers.rank_output import RankOutput
from dist_train.jobs.log_files import follow_logs
from dist_train.rundir import RunDir
from dist_train.rundir.log_text import bounded_log
from dist_train.rundir.log_text.log_parts import find_parts

LINE = b"%07d\n"


def logged(run: RunDir) -> list[str]:
    return list(follow_logs(run, 3, None, False, lambda: False))


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "a")
    made.create()
    made.attempt_logs(0).mkdir()
    return made


def write(log: RankLog, first: int, count: int) -> None:
    for at in range(first, first + count, 1000):
        log.write(b"".join(LINE % n for n in range(at, min(at + 1000, first + count))))
        log.flush()


def test_a_log_within_its_limit_is_read_through_all_its_parts(run: RunDir) -> None:
    said = io.StringIO()
    log = RankLog(run.attempt_logs(0), 3, 800_000, RankOutput("host", err=said))
    write(log, 0, 80_000)
    log.write(b"half a")
    log.close()
    assert find_parts(run.attempt_logs(0)) == {3: [0, 1, 2, 3, 4, 5, 6]}
    assert logged(run) == [f"{n:07d}" for n in range(80_000)] + ["half a"]
    assert said.getvalue() == ""


def test_of_a_longer_log_begin_and_end_are_kept_and_it_says_so(run: RunDir) -> None:
    said = io.StringIO()
    output = RankOutput("host", err=said)
    log = RankLog(run.attempt_logs(0), 3, 800_000, output)
    write(log, 0, 500_000)
    log.close()
    folder = run.attempt_logs(0)
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 800_000
    lines = logged(run)
    gap = next(n for n, line in enumerate(lines) if "left out here" in line)
    assert lines[:gap] == [f"{n:07d}" for n in range(gap)]
    assert gap >= 12_000
    assert lines[gap + 1 :] == [f"{n:07d}" for n in range(500_000 - len(lines) + gap + 1, 500_000)]
    assert len(lines) > 70_000
    assert said.getvalue().count("has reached its limit of 781.2 KiB (launch --log-limit)") == 1


@pytest.mark.parametrize("limit", [1 << 20, 3 << 20])
def test_at_least_seven_eighths_of_the_limit_are_kept(run: RunDir, limit: int) -> None:
    log = RankLog(run.attempt_logs(0), 3, limit)
    for n in range(6 * limit // 1000):
        log.write(b"%0999d\n" % n)
    log.close()
    kept = sum(path.stat().st_size for path in run.attempt_logs(0).iterdir())
    assert limit * 7 / 8 - 8 * 1000 < kept <= limit
    assert all(len(line) == 999 or "left out here" in line for line in logged(run))


def test_a_line_across_two_parts_is_one(run: RunDir) -> None:
    log = RankLog(run.attempt_logs(0), 3, 800)
    for part in (b"x" * 90 + b"\nbegin of", b" a line\n"):
        log.write(part)
        log.flush()
    log.close()
    assert find_parts(run.attempt_logs(0)) == {3: [0, 1]}
    assert logged(run) == ["x" * 90, "begin of a line"]


def test_following_goes_on_from_part_to_part(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dist_train.jobs.log_files._POLL_S", 0.0)
    log = RankLog(run.attempt_logs(0), 3, 8_000)
    polls = iter(range(30))

    def alive() -> bool:
        poll = next(polls)
        write(log, poll * 20, 20)
        return poll < 29

    assert list(follow_logs(run, 3, None, True, alive)) == [f"{n:07d}" for n in range(600)]
    log.close()


def test_a_log_goes_on_in_the_newest_part_after_a_restart(run: RunDir) -> None:
    for first in (0, 40_000):
        log = RankLog(run.attempt_logs(0), 3, 800_000)
        write(log, first, 40_000)
        log.close()
    assert logged(run) == [f"{n:07d}" for n in range(80_000)]


def test_lines_that_a_full_disk_does_not_take_are_counted_and_the_log_goes_on(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = io.StringIO()
    output = RankOutput("host", err=said)
    logs = [RankLog(run.attempt_logs(0), rank, output=output) for rank in (3, 4)]
    full = True

    def require_space(descriptor: int, wanted: int) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write(logs[0], 0, 1000)
    monkeypatch.setattr(bounded_log, "_require_space", require_space)
    monkeypatch.setattr(bounded_log, "_FLUSH_S", 0.0)
    full = False
    write(logs[0], 1000, 1000)
    full = True
    for log in logs:
        write(log, 2000, 150_000)
    assert said.getvalue().count("LOGS ARE NOT KEPT") == 1, "said once for all ranks"
    assert "No space left on device" in said.getvalue()
    full = False
    write(logs[0], 152_000, 1000)
    for log in logs:
        log.close()
    lines = logged(run)
    gap = next(line for line in lines if "were not kept here" in line)
    lost = int(gap.split()[1])
    kept = [line for line in lines if line.isdigit()]
    assert lost > 100_000
    assert len(kept) + lost == 153_000
    assert f"{lost} lines of rank 3's log were not kept: No space left on device" in said.getvalue()
    assert kept[-1] == "0152999"
