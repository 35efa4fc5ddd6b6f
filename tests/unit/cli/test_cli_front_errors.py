"""A newcomer's mistakes on the command line as one table: what was typed, the code, the message, the hint.

(Words wrong in other ways: test_cli_bad_words.py; configs: tests/unit/config/test_config_bad_input.py.)
"""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dist_train.jobs import JobHandle

TABLE = [
    # situation, words, exit code, what is said
    ("a verb misspelt", ["drlil"], 2, ["no verb is called 'drlil'", "Did you mean 'drill'?"]),
    ("another program's verb", ["train", "x.py"], 2, ["no verb is called 'train'"]),
    ("a verb's verb misspelt", ["checkpoint", "lst"], 2, ["checkpoint has no 'lst'", "'list'"]),
    ("an option misspelt", ["launch", "--node", "2", "train.yaml"], 2, ["--node", "--nodes"]),
    ("an option misspelt, underscores", ["launch", "--gpus_per_nod=2", "train.yaml"], 2, ["--gpus-per-node"]),
    ("an option of another verb", ["status", "--rank", "1"], 2, ["--rank"]),
    ("too small a value", ["drill", "--ranks", "0"], 2, ["--ranks", "0 is too small: it must be at least 1"]),
    ("a value that is none", ["launch", "--nodes", "two"], 2, ["--nodes", "'two' is not a whole number"]),
    (
        "a value misspelt",
        ["launch", "--launcher", "slrm"],
        2,
        ["'slrm' is none of kubernetes, local, slurm. Did you mean 'slurm'?", "'dist-train launch --help'"],
    ),
    ("an option without its value", ["launch", "--nodes"], 2, ["--nodes", "'dist-train launch --help'"]),
    ("an alias misspelt", ["gpuss"], 2, ["Did you mean 'gpus'?"]),
    ("two values", ["drill", "--seed", "1", "--seed", "2"], 2, ["--seed is given twice: 1 and 2"]),
    (
        "a config key misspelt",
        ["launch", "train.yaml", "trainer.epoch=3"],
        78,
        ["did you mean `trainer.epochs`?"],
    ),
    (
        "a config key at the wrong place",
        ["launch", "train.yaml", "epochs=3"],
        78,
        ["did you mean `trainer.epochs`?"],
    ),
    ("an argument misspelt", ["launch", "train.yaml", "model.args.hiden=3"], 78, ["hiden", "hidden"]),
    ("a component misspelt", ["launch", "train.yaml", "model.target=model:Nett"], 78, ["Nett", "Net"]),
    (
        "an option behind the script",
        ["launch", "nothing.py", "--nodes", "2"],
        66,
        ["no such file: nothing.py"],
    ),
    (
        "a config misspelt",
        ["launch", "trian.yaml"],
        66,
        ["no such file: trian.yaml", "did you mean train.yaml?"],
    ),
    (
        "a config of the examples misspelt",
        ["launch", "examples/digit.yaml"],
        66,
        ["no such file: examples/digit.yaml"],
    ),
    ("no such run", ["status", "nowhere"], 66, ["no run is called 'nowhere'", "dist-train list"]),
    ("a run misspelt", ["logs", "digit-1"], 66, ["did you mean 'digits-1'?"]),
    ("a folder that is no run", ["resume", "plain"], 66, ["no run is called 'plain'", "holds no job.json"]),
    ("no such step", ["checkpoint", "show", "digits-1", "--step", "5"], 66, ["no checkpoint of step 5"]),
    ("a shell that is not known", ["completion", "tcsh"], 2, ["'tcsh' is none of bash, zsh, fish"]),
    ("no shell", ["completion"], 2, ["Missing argument", "bash"]),
    ("init over files that are there", ["init"], 78, ["train.yaml", "init overwrites nothing"]),
    ("init into a file", ["init", "a-file"], 78, ["a-file cannot be written"]),
    ("init below a file", ["init", "a-file/x"], 78, ["a-file/x cannot be written: Not a directory"]),
]


@pytest.fixture
def folder(here: Path, make_run: Callable[..., Any], dist_train: Any) -> Path:
    """A newcomer's folder: what init writes, a run, a file, a folder."""
    dist_train("init")
    make_run("digits-1")
    (here / "a-file").write_text("")
    (here / "plain").mkdir()
    return here


@pytest.mark.parametrize(("words", "code", "said"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_each_mistake_is_named_with_a_hint(
    folder: Path, dist_train: Any, words: list[str], code: int, said: list[str]
) -> None:
    before = sorted(folder.rglob("*"))
    found = dist_train(*words)
    assert found.code == code, found
    for text in said:
        assert text in found.err
    assert found.out == ""
    assert "Traceback" not in found.err
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("verb", ["launch", "resume", "drill", "status", "logs", "list", "cancel"])
def test_a_current_folder_that_was_deleted_is_named(
    tmp_path: Path, dist_train: Any, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    (tmp_path / "script.py").write_text("")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    monkeypatch.setenv("PWD", str(tmp_path / "gone"))
    (tmp_path / "gone").rmdir()
    options = ["--run-dir", str(tmp_path / "run"), str(tmp_path / "script.py")] if verb == "launch" else []
    found = dist_train(verb, *options)
    assert found.code == 78, found
    assert f"the current folder does not exist: {tmp_path / 'gone'}" in found.err
    assert "hint:  `cd` to a folder that exists" in found.err
    assert "Traceback" not in found.err
    assert sorted(tmp_path.iterdir()) == [tmp_path / "script.py"]


@pytest.mark.parametrize("verb", ["status", "cancel", "resume", "logs"])
def test_a_name_that_means_two_runs_is_not_guessed(
    make_run: Callable[..., Any], here: Path, dist_train: Any, verb: str
) -> None:
    ours, other = make_run("digits-1").run, make_run("digits-1", root=here).run
    said = dist_train(verb, "digits-1")
    assert said.code == 2
    assert f"'digits-1' means 2 runs: {other.path}, {ours.path}" in said.err
    assert f"give the directory: {other.path}" in said.err
    assert dist_train("status", ours.path).code == 0
    assert dist_train("status", other.path).code == 0


def test_a_jobs_number_that_means_two_runs_is_not_guessed(
    make_run: Callable[..., Any], dist_train: Any
) -> None:
    for name, handle in (("a-1", "slurm:7"), ("b-1", "local:7")):
        run = make_run(name).run
        record = json.loads(run.job.read_text())
        run.job.write_text(json.dumps({**record, "handle": JobHandle(handle).text}))
    said = dist_train("status", "7")
    assert said.code == 2
    assert "'7' means 2 runs" in said.err
    assert dist_train("status", "local:7").code == 0


def test_readmes_example_is_found_where_there_is_no_checkout(here: Path, dist_train: Any) -> None:
    said = dist_train("launch", "examples/digits.yaml", "--device", "cpu", "--dry-run", "trainer.epochs=1")
    assert said.code == 0
    assert "no examples/digits.yaml here: taking the one that comes with dist-train (/" in said.err
    shown = dist_train("config", "show", "examples/digits.yaml")
    assert shown.code == 0
    assert "no examples/digits.yaml here" in shown.err


def test_a_checkouts_own_example_is_the_one_that_is_taken(here: Path, dist_train: Any) -> None:
    (here / "examples").mkdir()
    (here / "examples" / "digits.yaml").write_text("nonsense: 1\n")
    said = dist_train("launch", "examples/digits.yaml", "--dry-run")
    assert said.code == 78
    assert "examples/digits.yaml:1: unknown key `nonsense`" in said.err


def test_without_a_config_the_hint_names_init_and_the_examples(here: Path, dist_train: Any) -> None:
    said = dist_train("launch", "train.yaml")
    assert (said.code, "`dist-train init` writes one" in said.err) == (66, True), said


@pytest.mark.parametrize(
    "where", [[], ["--run-dir", "a/b/c"], ["--name", "mine"]], ids=["free", "dir", "name"]
)
def test_a_launch_that_is_refused_leaves_no_folder(here: Path, dist_train: Any, where: list[str]) -> None:
    (here / "train.py").write_text("")
    said = dist_train("launch", "--launcher", "kubernetes", *where, "train.py")
    assert (said.code, "--image" in said.err) == (78, True), said
    assert [path.name for path in here.iterdir()] == ["train.py"]


def test_a_launch_that_is_refused_leaves_what_was_there(here: Path, dist_train: Any) -> None:
    (here / "train.py").write_text("")
    (here / "runs").mkdir()
    dist_train("launch", "--launcher", "kubernetes", "train.py")
    assert list((here / "runs").iterdir()) == []


def test_a_full_disk_under_a_commands_output(here: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "dist_train.cli.main", "--help"], stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == 74
    assert done.stderr.startswith(
        b"error: what this command says could not be written: No space left on device\n  hint:"
    )


def test_a_full_disk_under_a_file_is_not_reported_as_stdouts(
    here: Path, dist_train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**words: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")  # as write(2) has it: without a name

    monkeypatch.setattr("dist_train.cli.verbs.list.COMMAND.callback", full)
    said = dist_train("list")
    assert (said.code, "error: a file could not be written: No space left" in said.err) == (74, True), said


def test_only_an_internal_error_is_70_with_a_traceback(
    here: Path, dist_train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**words: object) -> int:
        raise RuntimeError("a state that cannot be")

    monkeypatch.setattr("dist_train.cli.verbs.list.COMMAND.callback", broken)
    said = dist_train("list")
    assert said.code == 70
    assert "RuntimeError: a state that cannot be" in said.err
    assert "please report it" in said.err
