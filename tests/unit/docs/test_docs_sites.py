"""docs/start/sites.md: each command renders, and its script has the lines that the page shows below it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from dist_train.cli.main import run

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "start" / "sites.md"
_SITE = re.compile(r"^## (?P<name>.*?)\n(?P<text>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"(?:^    .*\n)+", re.MULTILINE)
_SHOWN = re.compile(r"^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Section:
    """One site."""

    name: str
    text: str

    @property
    def command(self) -> str:
        [block] = _COMMAND.findall(self.text)
        return re.sub(r"\\\n\s*", "", block).strip()

    @property
    def shown(self) -> list[str]:
        [block] = _SHOWN.findall(self.text)
        return str(block).splitlines()

    def __str__(self) -> str:
        return self.name


SECTIONS = [Section(one["name"], one["text"]) for one in _SITE.finditer(PAGE.read_text(encoding="utf-8"))]
SITES = [section for section in SECTIONS if _SHOWN.search(section.text)]


def test_the_sites_are_found() -> None:
    assert len(SITES) >= 8
    assert [section.name for section in SECTIONS if section not in SITES] == ["Your site is not here"]


@pytest.mark.parametrize("site", SITES, ids=str)
def test_the_sources_are_named(site: Section) -> None:
    assert re.search(r"^Sources?: \[.+\]\(https?://", site.text, re.MULTILINE)


@pytest.mark.proves("Each command of docs/start/sites.md renders the lines that the page shows")
@pytest.mark.parametrize("site", SITES, ids=str)
def test_the_command_renders_what_the_page_shows(
    site: Section, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(site.command.replace("$PWD", str(ROOT)))
    assert words[:2] == ["dist-train", "launch"]
    assert run([*words[1:], "--dry-run"]) == 0, capfd.readouterr().err
    script = capfd.readouterr().out.splitlines()
    [step] = [line for line in script if line.startswith("srun --unbuffered")]
    for line in site.shown:
        if line.startswith("… "):  # words of the srun line
            assert set(shlex.split(line)[1:]) <= set(shlex.split(step)), line
        else:
            assert line in script, line


def test_nothing_that_vista_refuses_is_rendered(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    [vista] = [site for site in SITES if site.name.startswith("Vista")]
    assert run([*shlex.split(vista.command.replace("$PWD", "/x"))[1:], "--dry-run"]) == 0
    lines = [line for line in capfd.readouterr().out.splitlines() if line.startswith("#SBATCH")]
    assert not [line for line in lines if re.search(r"--(gres|gpus|mem|nodelist|export)", line)]
