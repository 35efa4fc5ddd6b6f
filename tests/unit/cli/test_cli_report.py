"""`dist-train report`: one well-formed page for a run in any state, which loads and runs nothing."""

from __future__ import annotations

import json
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from dist_train.rundir import RunDir
from dist_train.rundir.failure import Failure, write_failure
from dist_train.rundir.records import write_json_atomic

GOLDEN = Path(__file__).parents[1] / "rundir" / "golden_run_v1"
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\x1b[31m"


def page_of(path: Path) -> ElementTree.Element:
    """The page, parsed: it is well-formed, and what it might load or run is not there."""
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>\n")
    page = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    for element in page.iter():
        assert element.tag not in ("script", "link", "img", "iframe", "object", "embed", "base", "a"), (
            element.tag
        )
        wrong = [name for name in element.attrib if name.startswith("on") or name in ("src", "href")]
        assert not wrong
    assert "url(" not in text
    assert "@import" not in text
    assert "could not be made" not in text
    return page


def words(page: ElementTree.Element) -> str:
    return " ".join("".join(page.find("body").itertext()).split())  # type: ignore[union-attr]


def headings(page: ElementTree.Element) -> list[str]:
    return ["".join(one.itertext()) for one in page.iter("h2")]


def report(dist_train: Any, run: str) -> ElementTree.Element:
    said = dist_train("report", run, "-o", "out.html")
    assert (said.code, said.out) == (0, "out.html\n"), said.err
    return page_of(Path("out.html"))


def test_a_finished_run(here: Path, dist_train: Any) -> None:
    shutil.copytree(GOLDEN / "finished", here / "runs" / "digits-1")
    said = dist_train("report", "digits-1")
    assert (said.code, said.out, said.err) == (0, "digits-1-report.html\n", "")
    path = here / "digits-1-report.html"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    page = page_of(path)
    assert headings(page) == [
        "Curves",
        "Where the time went",
        "Attempts and failures",
        "Checkpoints",
        "Config",
        "Environment",
    ]
    text = words(page)
    assert "digits-1 done" in text
    assert "2.13.0+cpu" in text
    assert "accuracy" in text
    titles = [svg.findtext("title") or "" for svg in page.iter("svg") if svg.get("role") == "img"]
    assert all(titles), "each picture has a text"
    assert any(title.startswith("loss. training: ") and "at step 23" in title for title in titles)


def test_a_failed_run_begins_with_the_root_cause(here: Path, dist_train: Any) -> None:
    shutil.copytree(GOLDEN / "failed", here / "runs" / "digits-1")
    page = report(dist_train, "digits-1")
    assert headings(page)[0] == "Why it failed"
    assert "rank 1 (node 0, local rank 1) on node-1" in words(page)
    assert "did you mean 'cuda:0'?" in words(page)
    assert "rank 1, step 31: RuntimeError: Invalid device string" in words(page)


def test_a_run_of_which_nothing_has_begun(make_run: Callable[..., Any], dist_train: Any) -> None:
    make_run("digits-1")
    page = report(dist_train, "digits-1")
    assert "Nothing was recorded yet." in words(page)
    assert headings(page) == ["Curves", "Environment"]


def test_a_running_run(make_run: Callable[..., Any], own: Any, dist_train: Any) -> None:
    run = make_run("digits-1").began().trained(10).trained(20, 0.25)
    own(run.run)
    page = report(dist_train, "digits-1")
    assert "digits-1 running" in words(page)
    assert "Not drawn" not in words(page)


def test_steps_that_were_done_again_are_pale(make_run: Callable[..., Any], dist_train: Any) -> None:
    run = make_run("digits-1").began().trained(10).trained(20).trained(30)
    run.restarted().began().trained(20, 0.4).trained(30, 0.3)
    page = report(dist_train, "digits-1")
    kinds = [element.get("class") for element in page.iter("polyline")]
    assert "line c0 repeated" in kinds
    assert "2 records" not in words(page)
    assert "5 records" in words(page)


def test_damage_is_named_and_the_rest_is_shown(make_run: Callable[..., Any], dist_train: Any) -> None:
    run = make_run("digits-1").began().trained(10, 0.5)
    with run.run.metrics.open("ab") as file:
        file.write(
            b'{"kind": "train", "st\xff\n[1, 2]\n{"kind": "train", "step": 20, "loss": 0.25}\n{"kind": "tr'
        )
    for path in (run.run.job, run.run.result, run.run.failure, run.run.config):
        path.write_bytes(b'{"a": \xff')
    with run.run.events.open("ab") as file:
        file.write(b'{"kind": "attempt_started", "time": 7}\n{"kind"')
    said = dist_train("report", "digits-1", "-o", "out.html")
    assert said.code == 0, said.err
    text = words(page_of(Path("out.html")))
    for problem in (
        "2 lines of metrics.jsonl cannot be read",
        "the last line of metrics.jsonl is cut off",
        "1 line of events.jsonl cannot be read",
        "job.json cannot be read",
        "result.json cannot be read",
        "failure.json cannot be read",
        "config.yaml cannot be read",
    ):
        assert problem in text
        assert problem in said.err
    assert "unknown" in text
    assert "2 records" in text


def test_what_users_and_programs_wrote_stays_text(make_run: Callable[..., Any], dist_train: Any) -> None:
    run = make_run("digits-1", env=(("NAME", EVIL),)).began()
    run.trained(10, 0.5, **{EVIL: 3.0, "metrics": {EVIL + "2": 1.0}})
    run.trained(10, 0.5, kind=EVIL)
    run.finished(1, why=EVIL)
    write_failure(
        run.run,
        Failure(
            *("rank", "exception", 1, 0, 0, EVIL),
            message=EVIL,
            file=EVIL,
            line=1,
            traceback=EVIL,
            hint=EVIL,
            log_tail=(EVIL,),
            next=(EVIL,),
        ),
    )
    run.run.config.write_text(json.dumps({EVIL: {EVIL: EVIL}}))
    write_json_atomic(run.run.attempts / "0" / "fingerprint.json", {EVIL: EVIL})
    page = report(dist_train, "digits-1")
    harmless = EVIL.replace("\x1b", "\ufffd")
    assert words(page).count(harmless) > 10


@pytest.mark.parametrize(
    "record",
    [
        {"step": "ten", "loss": 1.0},
        {"step": 10**400, "loss": 10**400},
        {"step": True, "loss": None, "metrics": 7, "slowest_rank": "x"},
        {"kind": ["a"], "step": 1, "loss": 1.0, "time": "yesterday", "lr": "fast", "memory_bytes": {}},
        {"step": -5, "loss": -1e308, "other": 1e308},
        {"step": float("nan"), "loss": float("nan"), "time": None},
    ],
    ids=str,
)
def test_records_of_any_shape_are_read(
    make_run: Callable[..., Any], dist_train: Any, record: dict[str, Any]
) -> None:
    run = make_run("digits-1").began().trained(1)
    for _ in range(2):
        with run.run.metrics.open("a") as file:
            file.write(json.dumps(record) + "\n")
    report(dist_train, "digits-1")


def test_a_long_run_says_that_it_is_thinned(make_run: Callable[..., Any], dist_train: Any) -> None:
    run: RunDir = make_run("digits-1").began().run
    line = '{"kind": "train", "time": "2026-11-22T11:43:20.410388Z", "step": %d, "loss": %f}\n'
    run.metrics.write_text("".join(line % (step, 1 / step) for step in range(1, 5001)))
    page = report(dist_train, "digits-1")
    assert "a line is the mean of neighbouring records" in words(page)
    assert Path("out.html").stat().st_size < 300_000


def test_json_says_where_the_report_is(make_run: Callable[..., Any], dist_train: Any, here: Path) -> None:
    make_run("digits-1").began().trained(10)
    said = dist_train("report", "digits-1", "--json")
    found = json.loads(said.out)
    assert found["schema_version"] == 1
    assert found["report"] == str(here / "digits-1-report.html")
    assert found["bytes"] == Path(found["report"]).stat().st_size
    assert (found["records"], found["attempts"], found["thinned"], found["problems"]) == (1, 1, False, [])


def test_only_a_report_is_replaced(make_run: Callable[..., Any], dist_train: Any, here: Path) -> None:
    make_run("digits-1")
    notes = here / "notes.html"
    notes.write_text("mine")
    said = dist_train("report", "digits-1", "-o", notes)
    assert (said.code, notes.read_text()) == (78, "mine")
    assert "exists, and is no report" in said.err
    for _ in range(2):
        assert dist_train("report", "digits-1").code == 0
    said = dist_train("report", "digits-1", "-o", here / "none" / "a.html")
    assert said.code == 66
    assert "no such directory" in said.err
    said = dist_train("report", "digits-1", "-o", here)
    assert (said.code, "is a folder" in said.err) == (78, True)


def test_values_of_the_config_have_their_origin(make_run: Callable[..., Any], dist_train: Any) -> None:
    run = make_run("digits-1").run
    run.config.write_text("seed: 7\noptimizer: adamw\ntrainer:\n  epochs: 20\n")
    origins = {"seed": "override", "optimizer.target": "train.yaml:3", "trainer.epochs": "default"}
    write_json_atomic(run.config_origins, {"origins": origins})
    page = report(dist_train, "digits-1")
    text = words(page)
    assert re.search(r"seed\s*7\s*override", text)
    assert re.search(r"optimizer\s*adamw\s*train.yaml:3", text)
    assert "1 defaults" in text
