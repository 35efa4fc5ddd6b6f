"""The report of a real run in a real browser: it fits phone and desktop, light and dark, loads nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from headless_browser import Browser, find_browser
from warm_commands.warm_launch import launch_cli

from dist_train import env
from dist_train.rundir import RunDir
from dist_train.rundir.events import append_event
from dist_train.rundir.metrics_file import append_metric
from dist_train.testing.plugin import require

pytestmark = [pytest.mark.multiprocess, pytest.mark.proof, pytest.mark.timeout(300)]

DIGITS = Path(__file__).parents[2] / "examples" / "digits.yaml"
EVIL = "<script>alert(1)</script><img src=http://127.0.0.1:9/x onerror=alert(2)>"
# The lowest contrast of any text with what is behind it (WCAG: 4.5), and that text.
_CONTRAST = """
(() => {
  const c = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgba = s => { c.clearRect(0,0,1,1); c.fillStyle = s; c.fillRect(0,0,1,1);
    return [...c.getImageData(0,0,1,1).data]; };
  const light = v => { const [r,g,b] = v.slice(0,3).map(x => { x /= 255;
    return x <= .03928 ? x/12.92 : ((x+.055)/1.055)**2.4; }); return .2126*r + .7152*g + .0722*b; };
  const over = (top, under) => { const a = top[3]/255; return [0,1,2].map(i => top[i]*a + under[i]*(1-a)); };
  const behind = e => { const all = []; for (; e; e = e.parentElement)
    all.unshift(rgba(getComputedStyle(e).backgroundColor));
    return all.reduce((u, t) => over(t, u), [255,255,255]); };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let worst = [99, ''];
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement, text = walk.currentNode.data.trim();
    if (!text || e.closest('title') || !e.getClientRects().length) continue;
    const style = getComputedStyle(e), svg = e.namespaceURI.endsWith('svg');
    const a = light(rgba(svg ? style.fill : style.color)), b = light(behind(e));
    const ratio = (Math.max(a,b)+.05)/(Math.min(a,b)+.05);
    if (ratio < worst[0]) worst = [ratio, text.slice(0, 60)];
  }
  return worst;
})()
"""


@pytest.fixture(scope="module")
def report_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the digits on two ranks, one of which was killed; its records have a hostile name and text too."""
    folder = tmp_path_factory.mktemp("report")
    words = ["--device", "cpu", "--gpus-per-node", "2", "--name", "digits", "trainer.epochs=2"]
    environ = {"OMP_NUM_THREADS": "1", env.INJECT: "kill:rank=1,step=31"}
    launched = launch_cli(
        ["launch", *words[:6], str(DIGITS), words[6], "checkpoint.every_steps=10"], folder, environ
    )
    assert launched.code == 0, launched.stderr
    run = RunDir(folder / "runs" / "digits")
    append_metric(run.metrics, {"kind": EVIL, "step": 46, EVIL: 1.0})
    append_event(run, "attempt_started", 2, hosts=[EVIL])
    append_event(run, "first_failure", 2, rank=0, message=EVIL)
    append_event(run, "finished", 2, exit_code=0, why=EVIL)
    reported = launch_cli(["report", "digits"], folder, {})
    assert reported.code == 0, reported.stderr
    return folder / reported.stdout.strip()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        require("browser", "no chromium-headless-shell (.ci/debian-packages.txt)")
    assert program is not None
    with Browser(program, tmp_path_factory.mktemp("profile")) as one:
        yield one


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 900)], ids=["phone", "desktop"])
def test_the_page_fits_and_can_be_read(
    report_file: Path, browser: Browser, width: int, height: int, scheme: str
) -> None:
    browser.open(report_file, width, height, scheme)
    if pictures := os.environ.get("DIST_TRAIN_PICTURES"):
        browser.screenshot(Path(pictures) / f"report-{width}-{scheme}.png")
    assert browser.value("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    for element in browser.value("[...document.querySelectorAll('details')].map(e => (e.open = true, 1))"):
        assert element == 1
    assert browser.value("document.documentElement.scrollWidth") <= width, "opened, it scrolls sideways"
    ratio, text = browser.value(_CONTRAST)
    assert ratio >= 4.5, f"{text!r} has a contrast of {ratio:.2f}"
    assert browser.value("document.querySelectorAll('svg[role=img]').length") >= 10
    assert browser.value("Math.min(...[...document.querySelectorAll('svg.by-step text')].map("
                         "e => e.getBoundingClientRect().height))") > 9  # fmt: skip


def test_curves_are_switched_from_steps_to_time_without_a_script(report_file: Path, browser: Browser) -> None:
    browser.open(report_file, 1280, 900, "light")
    shown = "[...document.querySelectorAll('.by-%s')].filter(e => e.getClientRects().length).length"
    steps = browser.value(shown % "step")
    assert (steps > 0, browser.value(shown % "time")) == (True, 0)
    browser.value("document.getElementById('over-time').click()")
    assert (browser.value(shown % "step"), browser.value(shown % "time")) == (0, steps)


def test_it_loads_and_runs_nothing(report_file: Path, browser: Browser) -> None:
    browser.requests.clear()
    browser.complaints.clear()
    browser.open(report_file, 1280, 900, "dark")
    assert browser.value("document.body.innerText").count(EVIL) >= 3
    assert browser.value("document.scripts.length + document.images.length") == 0
    assert browser.requests == [report_file.as_uri()]
    assert browser.complaints == []


def test_it_tells_of_both_attempts_and_both_ranks(report_file: Path, browser: Browser) -> None:
    browser.open(report_file, 1280, 900, "light")
    text = browser.value("document.body.innerText")
    assert "rank 1" in text
    tables = browser.value(
        "[...document.querySelectorAll('table')].map("
        "t => [t.caption ? t.caption.innerText : '', t.rows.length])"
    )
    rows = dict(map(tuple, json.loads(json.dumps(tables))))
    [by_rank] = [count for caption, count in rows.items() if caption.startswith("Time of each rank")]
    assert by_rank == 3, "a head, and two ranks"
