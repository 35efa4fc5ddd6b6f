"""The output of a job, as a follower prints it."""

from __future__ import annotations

from pathlib import Path

from dist_train.rundir import RunDir
from dist_train.rundir.outcome_text import RULE
from launchers._slurm.slurm_output import JobConsole


def write(run: RunDir, name: str, text: str) -> Path:
    path = run.logs / name
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
    return path


def test_new_lines_of_every_task_once(run: RunDir) -> None:
    console = JobConsole(run, "12")
    assert console.lines() == []
    write(run, "12_0_log.out", "epoch 1\n")
    write(run, "12_1_log.out", "hello\n")
    assert console.lines() == [b"epoch 1", b"hello"]
    write(run, "12_0_log.out", "epoch 2\n")
    assert console.lines() == [b"epoch 2"]
    assert console.lines() == []


def test_a_line_is_shown_when_it_is_whole(run: RunDir) -> None:
    console = JobConsole(run, "12")
    write(run, "12_0_log.out", "one\ntw")
    assert console.lines() == [b"one"]
    write(run, "12_0_log.out", "o\n")
    assert console.lines() == [b"two"]


def test_the_output_of_other_jobs_in_the_same_run_is_not_shown(run: RunDir) -> None:
    write(run, "11_0_log.out", "the first submission\n")
    write(run, "112_0_log.out", "another\n")
    assert JobConsole(run, "12").lines() == []


def test_a_requeued_job_goes_on_in_the_same_file(run: RunDir) -> None:
    console = JobConsole(run, "12")
    write(run, "12_0_log.out", "step 1\n")
    console.lines()
    write(run, "12_0_log.out", "step 2 of the next attempt\n")
    assert console.lines() == [b"step 2 of the next attempt"]


def test_of_a_failure_only_the_headline_is_shown(run: RunDir) -> None:
    console = JobConsole(run, "12")
    block = f"{RULE}\nFAILED: rank 1: boom\n  File train.py\n  next: logs\n{RULE}\n"
    write(run, "12_0_log.out", f"before\n{block}after\n")
    assert console.lines() == [b"before", b"FAILED: rank 1: boom", b"after"]


def test_a_block_that_is_still_being_written(run: RunDir) -> None:
    console = JobConsole(run, "12")
    write(run, "12_0_log.out", f"{RULE}\nFAILED: rank 1: boom\n")
    write(run, "12_1_log.out", "of another task\n")
    assert console.lines() == [b"FAILED: rank 1: boom", b"of another task"]
    write(run, "12_0_log.out", f"the rest\n{RULE}\nafter\n")
    assert console.lines() == [b"after"]


def test_bytes_that_are_no_text_are_shown_as_they_are(run: RunDir) -> None:
    (run.logs / "12_0_log.out").write_bytes(b"\xff\x00\r\n")
    assert JobConsole(run, "12").lines() == [b"\xff\x00\r"]
