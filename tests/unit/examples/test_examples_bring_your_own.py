"""Bring your own script: how many lines change at each stage, and what they achieve."""

from __future__ import annotations

import contextlib
import difflib
import io
import re
import tokenize
from pathlib import Path

import pytest
from example_runs import EXAMPLES, on_ranks, run_script
from safetensors.torch import load_file

from dist_train.checkpoint.format.hashing import weights_hash
from dist_train.rundir.metrics_file import read_metrics
from dist_train.testing import run_ranks
from dist_train.testing.ranks import RanksFailed

FOLDER = EXAMPLES / "bring_your_own_script"
STEPS = 12 * 10  # 12 epochs of ceil(600 / 64)


def code_lines(name: str) -> list[str]:
    """The file's lines of code, without comments, blank lines and docstring."""
    text = (FOLDER / name).read_text().split('"""', 2)[2]
    words = tokenize.generate_tokens(io.StringIO(text).readline)
    rows: dict[int, str] = {}
    lines = text.splitlines()
    for word in words:
        if word.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER):
            for row in range(word.start[0], word.end[0] + 1):
                rows[row] = lines[row - 1].partition("  #")[0].rstrip()
    return [row for _, row in sorted(rows.items()) if row]


def changes(old: str, new: str) -> tuple[int, int]:
    """(number of removed lines, number of added lines)."""
    words = [line[:2] for line in difflib.ndiff(code_lines(old), code_lines(new))]
    return words.count("- "), words.count("+ ")


@pytest.mark.proves(
    "Five lines make a loop multi-node, four more make it survive a kill with the same weights",
)
@pytest.mark.parametrize(
    ("old", "new", "gone", "come"),
    [
        ("before.py", "after.py", 5, 5),  # five changed
        ("after.py", "resumable.py", 1, 4),  # four more, one of which replaces a line
        ("resumable.py", "watched.py", 1, 6),  # five more, and the step becomes a variable
    ],
)
def test_the_lines_that_change_are_counted(old: str, new: str, gone: int, come: int) -> None:
    assert changes(old, new) == (gone, come)


def test_the_numbers_in_the_files_are_those_of_the_changed_lines() -> None:
    for name, count in (("after.py", 5), ("resumable.py", 4), ("watched.py", 5)):
        comments = re.findall(r"  # (\d)", (FOLDER / name).read_text())
        assert comments == [str(n + 1) for n in range(count)], name


def weights(folder: Path) -> str:
    return weights_hash(load_file(folder / "spirals.safetensors"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "saved"), [("before.py", "spirals.pt"), ("after.py", "spirals.safetensors")]
)
def test_it_runs_without_a_launcher(folder: Path, name: str, saved: str) -> None:
    assert run_ranks(run_script, 1, args=(FOLDER / name,)) == [STEPS]
    assert [path.name for path in folder.iterdir()] == [saved]


@pytest.mark.parametrize("name", ["resumable.py", "watched.py"])
def test_without_a_run_directory_the_error_names_the_command(folder: Path, name: str) -> None:
    with pytest.raises(RanksFailed) as caught:
        run_ranks(run_script, 1, args=(FOLDER / name,))
    last = str(caught.value).splitlines()[-4:]
    assert "NotFoundError: this process has no run directory" in last[0]
    assert f"hint:  dist-train launch {FOLDER / name}" in last[2]
    assert 'CheckpointManager("checkpoints")' in last[3]
    assert not list(folder.iterdir())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights of after.py on two ranks, trained once."""
    place = tmp_path_factory.mktemp("after")
    with contextlib.chdir(place):
        on_ranks(2, FOLDER / "after.py", (), place)
    return weights(place)


@pytest.mark.proves(
    "Five lines make a loop multi-node, four more make it survive a kill with the same weights",
)
def test_killed_and_resumed_it_ends_with_the_weights_of_an_undisturbed_run(
    folder: Path, undisturbed: str
) -> None:
    with pytest.raises(RanksFailed, match="SIGKILL"):
        on_ranks(2, FOLDER / "resumable.py", (), folder / "run", kill=(1, 75))
    assert not (folder / "spirals.safetensors").exists()
    steps = on_ranks(2, FOLDER / "resumable.py", (), folder / "run", attempt=1)
    assert steps == [STEPS - 60] * 2, "killed at 75, saved at 60"
    assert weights(folder) == undisturbed
    committed = sorted(path.name for path in (folder / "run" / "checkpoints").glob("step-*"))
    assert committed[-1] == f"step-{STEPS:08d}"


@pytest.mark.proof
def test_watched_writes_metrics_and_ends_with_the_same_weights(folder: Path, undisturbed: str) -> None:
    (folder / "run").mkdir()
    on_ranks(2, FOLDER / "watched.py", (), folder / "run")
    assert weights(folder) == undisturbed
    records = read_metrics(folder / "run" / "metrics.jsonl")
    assert [record["step"] for record in records] == list(range(1, STEPS + 1))
    assert records[-1]["epoch"] == 11
    assert records[-1]["loss"] < records[0]["loss"]
