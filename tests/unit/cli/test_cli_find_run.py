"""RUN is a name, a directory, a handle or @last."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dist_train.cli.run.find_run import all_runs, find_run, open_run, rename_handle, short_name_of
from dist_train.errors import ConfigError, NotFoundError
from dist_train.jobs import JobHandle


def test_by_name_by_directory_by_handle_and_the_newest(make_run: Callable[..., Any], here: Path) -> None:
    first, second = make_run("a-1").run, make_run("b-1").run
    os.utime(second.job, (1, 1))
    assert find_run("b-1") == second
    assert find_run("runs/b-1") == find_run(str(second.path)) == find_run("./runs/../runs/b-1/") == second
    assert find_run("@last") == first
    rename_handle(second, JobHandle("local:4711"))
    assert find_run("local:4711") == second
    assert [run.path.name for run in all_runs()] == ["a-1", "b-1"]


def test_a_run_elsewhere_is_found_by_its_path(make_run: Callable[..., Any], here: Path) -> None:
    run = make_run("far", root=here / "scratch").run
    assert find_run("scratch/far") == run
    assert short_name_of(run) == str(run.path)
    assert short_name_of(make_run("near").run) == "near"


def test_a_folder_without_a_run_is_named_as_such(here: Path) -> None:
    (here / "plain").mkdir()
    with pytest.raises(NotFoundError, match=r"no run is called 'plain'") as caught:
        find_run("plain")
    assert "holds no job.json" in str(caught.value)


def test_opening_returns_what_was_submitted(make_run: Callable[..., Any]) -> None:
    made = make_run("a-1", nodes=2, env=(("A", "1"),))
    opened = open_run("a-1")
    assert (opened.spec, opened.handle, opened.launcher.name) == (made.spec, made.handle, "local")


@pytest.mark.parametrize("damage", ["{", "[1]", '{"launcher": "local"}', '{"launcher": "local", "spec": {}}'])
def test_a_damaged_record_is_an_error_and_hides_no_other(
    make_run: Callable[..., Any], dist_train: Any, damage: str
) -> None:
    make_run("good-1")
    bad = make_run("bad-1").run
    bad.job.write_text(damage)
    with pytest.raises(ConfigError, match=r"job\.json cannot be read"):
        open_run("bad-1")
    assert find_run("local:1").path.name == "good-1"
    said = dist_train("list")
    assert said.code == 0
    assert "good-1  pending" in said.out
    assert "bad-1   unknown" in said.out
    assert "job.json cannot be read" in said.err


def test_a_launcher_that_is_not_installed_is_named(make_run: Callable[..., Any], dist_train: Any) -> None:
    run = make_run("a-1").run
    run.job.write_text(run.job.read_text().replace('"launcher": "local"', '"launcher": "moon"'))
    said = dist_train("status", "a-1")
    assert said.code == 78
    assert "'moon'" in said.err
