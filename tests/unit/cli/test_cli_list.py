"""`list`: one line per run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def test_one_line_per_run(make_run: Callable[..., Any], dist_train: Any) -> None:
    make_run("a-1", nodes=2, procs_per_node=4).began().trained(7, 0.125).finished(0)
    make_run("long-name-2")
    said = dist_train("list")
    head, first, second = said.out.splitlines()
    assert head.split()[:3] == ["NAME", "PHASE", "LAUNCHER"]
    assert first.split() == ["a-1", "done", "local", "2", "x", "4", "1", "-", "0.125", "0", "s"]
    assert second.split()[:3] == ["long-name-2", "pending", "local"]
    assert first.index("done") == second.index("pending") == head.index("PHASE")
    assert said.err == ""


def test_json_holds_every_run(make_run: Callable[..., Any], dist_train: Any) -> None:
    make_run("a-1").began().trained(7, 0.125)
    make_run("bad-1").run.job.write_text("{")
    found = json.loads(dist_train("list", "--json").out)
    assert found["schema_version"] == 1
    assert [run["name"] for run in found["runs"]] == ["a-1", "bad-1"]
    assert found["runs"][0]["train"]["loss"] == 0.125
    assert found["runs"][1]["phase"] == "unknown"


def test_no_runs_is_no_error(dist_train: Any) -> None:
    said = dist_train("list")
    assert (said.code, said.out) == (0, "")
    assert "no runs in" in said.err
    assert json.loads(dist_train("list", "--json").out)["runs"] == []


def test_every_run_below_a_folder(make_run: Callable[..., Any], here: Path, dist_train: Any) -> None:
    deep = make_run("a-1", root=here / "scratch" / "me" / "runs").run
    make_run("b-1", root=here / "scratch" / ".hidden")
    make_run("inner", root=deep.path)
    said = dist_train("list", "--all-dirs", "scratch")
    assert [line.split()[0] for line in said.out.splitlines()[1:]] == [str(deep.path)]
    assert dist_train("list").out == ""


def test_only_the_end_of_long_metrics_is_read(make_run: Callable[..., Any], dist_train: Any) -> None:
    made = make_run("a-1")
    filler = json.dumps({"kind": "train", "step": 1, "loss": 9.0, "pad": "x" * 1000}) + "\n"
    made.run.metrics.write_text(filler * 200)
    made.trained(500, 0.5)
    with made.run.metrics.open("a") as file:
        file.write('{"kind": "train", "step": 501, "lo')  # torn by a kill
    assert json.loads(dist_train("list", "--json").out)["runs"][0]["train"]["step"] == 500


def test_filters_leave_runs_out(make_run: Callable[..., Any], dist_train: Any) -> None:
    make_run("digits-1").began().finished(0)
    make_run("digits-2")
    make_run("text-1").began().finished(0)

    def names(*words: str) -> list[str]:
        return [run["name"] for run in json.loads(dist_train("list", "--json", *words).out)["runs"]]

    assert names("--status", "done") == ["digits-1", "text-1"]
    assert names("--name", "digits-*") == ["digits-1", "digits-2"]
    assert names("--name", "digits-*", "--status", "pending") == ["digits-2"]
    assert names("--launcher", "local") == ["digits-1", "digits-2", "text-1"]
    assert names("--launcher", "slurm") == []
    said = dist_train("list", "--status", "failed")
    assert (said.code, said.out) == (0, "")
    assert "no such runs in" in said.err


def test_a_damaged_run_is_of_no_launcher_and_of_unknown_phase(
    make_run: Callable[..., Any], dist_train: Any
) -> None:
    make_run("bad-1").run.job.write_text("{")
    assert dist_train("list", "--launcher", "local").out == ""
    assert "bad-1" in dist_train("list", "--status", "unknown").out


def test_a_run_that_is_left_out_is_not_asked_for(
    make_run: Callable[..., Any], dist_train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dist_train.cli.verbs import list as list_verb

    asked: list[str] = []
    real = list_verb._status
    monkeypatch.setattr(list_verb, "_status", lambda run: asked.append(run.path.name) or real(run))
    make_run("digits-1")
    make_run("text-1")
    dist_train("list", "--name", "text-*")
    assert asked == ["text-1"]
