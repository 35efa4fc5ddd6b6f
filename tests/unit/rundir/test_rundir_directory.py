"""The run directory: mode 0700, attempts numbered by an exclusive mkdir, each free name taken once."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dist_train.errors import ConfigError
from dist_train.rundir import RunDir
from dist_train.rundir.committed_steps import committed_steps, newest_step
from dist_train.rundir.directory import take_free_name
from dist_train.rundir.records import write_json_atomic


def test_it_is_private_and_can_be_created_twice(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "deep" / "run")
    run.create()
    run.create()
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(run.control.stat().st_mode) == 0o700
    assert not run.is_run
    write_json_atomic(run.job, {})
    assert run.is_run


def test_attempts_are_numbered_once_each_from_eight_threads(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.create()
    with ThreadPoolExecutor(8) as pool:
        numbers = sorted(pool.map(lambda _: run.begin_attempt(), range(64)))
    assert numbers == list(range(64))
    assert run.begin_attempt() == 64


def test_a_stray_file_among_attempts_does_not_matter(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.create()
    (run.attempts / "notes").write_text("")
    assert [run.begin_attempt(), run.begin_attempt()] == [0, 1]


def test_each_free_name_is_taken_once(tmp_path: Path) -> None:
    (tmp_path / "runs" / "digits-2").mkdir(parents=True)
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: take_free_name(tmp_path / "runs", "digits").name, range(16)))
    assert sorted(taken) == sorted(f"digits-{n}" for n in range(1, 18) if n != 2)


@pytest.mark.parametrize("place", ["a-file/run", "a-file"])
def test_an_unwritable_place_is_a_config_error(tmp_path: Path, place: str) -> None:
    (tmp_path / "a-file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be written: (Not a directory|File exists)") as caught:
        RunDir(tmp_path / place).create()
    assert "--run-dir DIR" in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be written"):
        take_free_name(tmp_path / place, "digits")


def test_a_step_counts_once_its_manifest_is_there(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    assert (committed_steps(run), newest_step(run)) == ([], None)
    run.create()
    for name in ("step-00000009", "step-00000010", ".step-11.tmp-0", "step-x", "quarantine"):
        (run.checkpoints / name).mkdir()
        if name != "step-00000010":
            (run.checkpoints / name / "manifest.json").write_text("{}")
    assert (committed_steps(run), newest_step(run)) == ([9], 9)
