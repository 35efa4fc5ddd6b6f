"""`logs`: by rank and attempt, with --grep, --follow and readers that leave early."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def talked(make_run: Callable[..., Any]) -> Any:
    made = make_run("a-1").began().log(0, "loss 0.9", "loss 0.8").log(1, "hello")
    made.began().log(0, "loss 0.7", attempt=1).log(1, "héllo \x1b[31mred\x1b[0m", attempt=1)
    return made.finished(0, attempt=1)


def test_the_newest_attempt_each_line_behind_its_rank(talked: Any, dist_train: Any) -> None:
    said = dist_train("logs")
    assert (said.code, said.err) == (0, "")
    assert said.out == "[rank 0] loss 0.7\n[rank 1] héllo red\n"


def test_one_rank_of_one_attempt(talked: Any, dist_train: Any) -> None:
    assert dist_train("logs", "a-1", "--rank", 0, "--attempt", 1).out == "loss 0.9\nloss 0.8\n"


def test_only_lines_that_match(talked: Any, dist_train: Any) -> None:
    assert (
        dist_train("logs", "--attempt", 1, "--grep", r"0\.8$|hell").out
        == "[rank 0] loss 0.8\n[rank 1] hello\n"
    )


def test_attempts_count_from_1_for_people_and_from_0_in_json(talked: Any, dist_train: Any) -> None:
    assert "attempt     2, " in dist_train("status").out
    assert dist_train("logs", "--rank", 0, "--attempt", 2).out == "loss 0.7\n"
    assert json.loads(dist_train("logs", "--attempt", 2, "--json").out)["attempt"] == 1
    said = dist_train("logs", "--attempt", 0)
    assert (said.code, "it must be at least 1" in said.err) == (2, True)
    said = dist_train("logs", "--help").out
    assert "counts from 1, as `status` prints" in " ".join(said.split())
    assert "logs/attempt-0" in said


def test_json_is_one_object(talked: Any, dist_train: Any) -> None:
    found = json.loads(dist_train("logs", "--rank", 0, "--json").out)
    assert (found["schema_version"], found["rank"], found["lines"]) == (1, 0, ["loss 0.7"])


def test_a_rank_or_attempt_without_a_log_is_66(talked: Any, dist_train: Any) -> None:
    said = dist_train("logs", "--rank", 7)
    assert (said.code, "no log of rank 7" in said.err) == (66, True)
    said = dist_train("logs", "--attempt", 9)
    assert said.code == 66
    assert "attempts with logs: 1, 2" in said.err


def test_following_goes_on_into_the_next_attempt_and_ends_with_the_run(
    make_run: Callable[..., Any], dist_train: Any, own: Any
) -> None:
    made = make_run("a-1")

    def live() -> None:
        time.sleep(0.4)  # still pending: following waits instead of failing
        owner = own(made.run)
        made.began().log(0, "one")
        time.sleep(0.4)
        made.began().log(0, "three", attempt=1)
        time.sleep(0.4)
        owner.kill()
        owner.wait()

    life = threading.Thread(target=live)
    life.start()
    said = dist_train("logs", "-f", "--rank", 0)
    life.join()
    assert said.code == 0
    assert said.out == "one\nthree\n"
    assert "waiting for a-1: no agent has begun yet" in said.err


def test_a_reader_that_leaves_early_causes_no_traceback(talked: Any) -> None:
    talked.log(0, *["x" * 100] * 20_000, attempt=1)
    command = f"{sys.executable} -m dist_train.cli.main logs a-1 | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (141, "")
    assert done.stdout == "[rank 0] loss 0.7\n"


def test_logs_are_read_where_job_json_is_damaged(make_run: Callable[..., Any], dist_train: Any) -> None:
    made = make_run("a-1").began().log(0, "first", "second")
    made.run.job.write_text("{")
    said = dist_train("logs", "a-1", "--rank", 0, "--grep", "sec")
    assert (said.code, said.out) == (0, "second\n")
    assert "job.json cannot be read" in said.err
    assert "the logs of the run directory follow" in said.err
    assert dist_train("logs", "a-1", "--json").out.count("second") == 1
    assert dist_train("status", "a-1").code == 78
