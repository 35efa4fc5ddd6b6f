"""Wrong arguments: (arguments, exit code, message). Nothing is left behind, no traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DIGITS = Path(__file__).parents[3] / "examples" / "digits.yaml"

TABLE = [
    # the top level
    (["lunch", "x.yaml"], 2, ["no verb is called 'lunch'", "'launch'"]),
    (["resum"], 2, ["'resume'"]),
    (["checkpoint", "verfy"], 2, ["checkpoint has no 'verfy'", "'verify'"]),
    (["config", "shwo", "x"], 2, ["'show'"]),
    (["status", "--exit-cod"], 2, ["--exit-code"]),
    (["list", "extra"], 2, ["extra"]),
    # runs
    (["status"], 66, ["there is no run in", "dist-train launch"]),
    (["status", "nowhere"], 66, ["no run is called 'nowhere'", "dist-train list"]),
    (["resume", "nowhere"], 66, ["'nowhere'"]),
    (["cancel", "nowhere"], 66, ["'nowhere'"]),
    (["logs", "nowhere"], 66, ["'nowhere'"]),
    (["events", "nowhere"], 66, ["'nowhere'"]),
    (["status", "--json", "--watch"], 2, ["--json", "--watch"]),
    (["list", "--status", "runing"], 2, ["'runing'", "'running'"]),
    (["list", "--launcher", "slrm"], 2, ["'slrm'", "slurm"]),
    (["list", "--name", "a", "--name", "b"], 2, ["--name is given twice: a and b"]),
    (["stacks", "nowhere"], 66, ["'nowhere'"]),
    (["stacks", "--rank", "first"], 2, ["'first' is not a whole number"]),
    (["doctor", "--of", "nowhere"], 66, ["'nowhere'"]),
    (["doctor", "--of", "x", "--nodes", "2"], 2, ["--of x launches nothing", "--nodes 2"]),
    (["doctor", "train.py"], 2, ["doctor takes no target: 'train.py'"]),
    (["doctor", "--detach"], 2, ["--detach", "dist-train doctor --help"]),
    (["doctor", "--nodes", "0"], 2, ["0 is too small"]),
    (["doctor", "--launcher", "slrm"], 2, ["'slrm'", "slurm"]),
    (["doctor", "--of", "x", "--of", "y"], 2, ["--of is given twice: x and y"]),
    (["checkpoint", "list", "nowhere"], 66, ["'nowhere'"]),
    (["config", "show", "nowhere"], 66, ["'nowhere'"]),
    (["list", "--all-dirs", "nowhere"], 66, ["no such directory: nowhere"]),
    # targets
    (["launch", "missing.py"], 66, ["no such file: missing.py"]),
    (["launch", "missing.yaml"], 66, ["no such file: missing.yaml"]),
    (["launch", "trian.py"], 66, ["did you mean train.py?"]),
    (["launch", "trainer.epochs=3"], 2, ["is not a target", "overrides stand after the config"]),
    (["launch", "DIGITS", "epochs"], 2, ["'epochs' after", "neither an option nor an override"]),
    (["launch", "DIGITS", "trainer.epoch=3"], 78, ["trainer.epoch", "trainer.epochs"]),
    # options of launch
    (["launch", "--node", "2", "train.py"], 2, ["--node", "--nodes"]),
    (["launch", "DIGITS", "--gpus-per-nod", "2"], 2, ["--gpus-per-node"]),
    (["launch", "--nodes", "2", "--nodes", "3", "train.py"], 2, ["--nodes is given twice: 2 and 3"]),
    (["launch", "-N", "2", "DIGITS", "--nnodes", "3"], 2, ["--nodes is given twice: 2 and 3"]),
    (["launch", "--nodes", "0", "train.py"], 2, ["--nodes", "0"]),
    (["launch", "--nodes", "two", "train.py"], 2, ["two"]),
    (["launch", "--launcher", "slrm", "train.py"], 2, ["slrm", "local"]),
    (["launch", "--cpus-per-task", "4", "train.py"], 2, ["ambiguous", "--cpus-per-gpu"]),
    (["launch", "--env", "HF_TOKEN=x", "train.py"], 2, ["HF_TOKEN", "--secret HF_TOKEN"]),
    (["launch", "--env", "A", "train.py"], 2, ["'A'", "NAME=VALUE"]),
    (["launch", "--env", "A=1", "--env", "A=2", "train.py"], 2, ["--env A is given twice: 1 and 2"]),
    (["launch", "--env", "DIST_TRAIN_RUN_ID=x", "train.py"], 2, ["DIST_TRAIN_RUN_ID"]),
    (["launch", "--detach", "--dry-run", "train.py"], 2, ["--detach", "--dry-run"]),
    (["launch", "--nodes", "2", "-m"], 2, ["-m stands without a module"]),
    (["launch", "--show-ranks", "first", "train.py"], 2, ["--show-ranks 'first'"]),
    (
        [
            "launch",
            "--nodes",
            "2",
            "--gpus-per-node",
            "2",
            "--device",
            "cpu",
            "--show-ranks",
            "0,4,7",
            "train.py",
        ],
        2,
        ["--show-ranks 0,4,7: there is no rank 4, 7", "ranks are 0 to 3"],
    ),
    (["launch", "--profile", "5:3", "train.py"], 78, ["--profile 5:3: the first step", "did you mean 3:5"]),
    (["launch", "--profile=ten", "train.py"], 78, ["--profile ten", "expected FIRST:LAST, such as 11:15"]),
    (
        ["launch", "--profile", "1:90", "train.py"],
        78,
        ["--profile 1:90: the first steps", "step 3 is the first", "try 3:52"],
    ),
    (["launch", "DIGITS", 'launch.profile="5:3"'], 78, ["launch.profile", "did you mean 3:5"]),
    (
        [
            "launch",
            "--device",
            "cpu",
            "--nproc-per-node",
            "2",
            "--profile",
            "--profile-ranks",
            "0,2",
            "train.py",
        ],
        78,
        ["--profile-ranks 0,2: there is no rank 2", "ranks are 0 to 1"],
    ),
    (
        ["launch", "--device", "cpu", "--profile-ranks", "all", "train.py"],
        78,
        ["without --profile", "--profile 11:15 --profile-ranks all"],
    ),
    (["resume", "--profile", "5:3"], 2, ["--profile", "did you mean 3:5"]),
    (["profile", "nowhere"], 66, ["'nowhere'"]),
    (["report"], 66, ["there is no run in"]),
    (["report", "nowhere"], 66, ["'nowhere'"]),
    (
        ["report", "a", "-o", "x.html", "--output", "y.html"],
        2,
        ["--output is given twice: x.html and y.html"],
    ),
    (["report", "a", "b"], 2, ["b"]),
    (["compare"], 2, ["RUN RUN..."]),
    (["compare", "nowhere", "nobody"], 66, ["'nowhere'"]),
    (["compare", "nowhere"], 2, ["one run is given: nowhere", "dist-train compare nowhere OTHER"]),
    (["diff"], 2, ["RUN"]),
    (["diff", "nowhere"], 2, ["RUN"]),
    (["diff", "nowhere", "nobody"], 66, ["'nowhere'"]),
    (["diff", "a", "b", "c"], 2, ["c"]),
    (["resume", "--log-limit", "4K"], 2, ["--log-limit", "'4K': a log needs at least 1M"]),
    (["launch", "--device", "cpu", "--gpus", "0", "train.py"], 2, ["contradicts --device cpu"]),
    (["launch", "--name", "a/b", "train.py"], 78, ["the name 'a/b' cannot be used"]),
    (["launch", "--time", "soon", "train.py"], 78, ["'soon'", "HH:MM:SS"]),
    (["launch", "--init-method", "udp://x", "train.py"], 78, ["init-method", "tcp://HOST:PORT"]),
    (["launch", "--run-dir", "a-file/run", "train.py"], 78, ["cannot be written", "Not a directory"]),
    (["launch", "--run-dir", "full", "train.py"], 78, ["not an empty directory"]),
    # options of the others
    (["resume", "--nodes", "2", "--nodes", "3"], 2, ["--nodes is given twice: 2 and 3"]),
    (["resume", "--detach", "--dry-run"], 2, ["--dry-run submits nothing"]),
    (["logs", "--json", "--follow"], 2, ["--json", "--follow"]),
    (["logs", "--grep", "("], 2, ["'('", "not a regular expression"]),
    (["logs", "--rank", "one"], 2, ["one"]),
    (["config", "check", "missing.yaml"], 66, ["missing.yaml"]),
    (["config", "show"], 2, ["CONFIG|RUN"]),
]


@pytest.fixture
def folder(here: Path) -> Path:
    (here / "train.py").write_text("")
    (here / "a-file").write_text("")
    (here / "full").mkdir()
    (here / "full" / "notes").write_text("")
    return here


@pytest.mark.parametrize(
    ("words", "code", "texts"),
    TABLE,
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else None,
)
def test_a_wrong_argument_is_named_with_a_hint(
    folder: Path, dist_train: Any, words: list[str], code: int, texts: list[str]
) -> None:
    before = sorted(folder.rglob("*"))
    said = dist_train(*(str(DIGITS) if word == "DIGITS" else word for word in words))
    assert said.code == code
    for text in texts:
        assert text in said.err
    assert said.out == ""
    assert "Traceback" not in said.err
    assert sorted(folder.rglob("*")) == before


def test_an_option_of_another_launcher_names_it(folder: Path, dist_train: Any, pretend: Any) -> None:
    said = dist_train("launch", "-p", "gpu", "train.py")
    assert said.code == 2
    assert "-p" in said.err or "--partition gpu" in said.err
    assert "pretend launcher" in said.err
    assert "--launcher pretend" in said.err
    chosen = dist_train(
        "launch", "--launcher", "pretend", "-p", "gpu", "--run-id", "r", "--dry-run", "train.py"
    )
    assert (chosen.code, chosen.out) == (0, "#!/bin/sh\n# r gpu\n")


def test_no_target_needs_the_local_launcher(folder: Path, dist_train: Any, pretend: Any) -> None:
    said = dist_train("launch", "--launcher", "pretend")
    assert said.code == 2
    assert "no TARGET" in said.err


def test_the_nearest_run_is_named(make_run: Callable[..., Any], dist_train: Any) -> None:
    make_run("digits-1")
    said = dist_train("status", "digit-1")
    assert said.code == 66
    assert "did you mean 'digits-1'?" in said.err


def test_an_existing_run_is_not_launched_into(
    folder: Path, make_run: Callable[..., Any], dist_train: Any
) -> None:
    make_run("digits-1")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    said = dist_train("launch", "--name", "digits-1", "train.py")
    assert said.code == 78
    assert "is a run already" in said.err
    assert f"dist-train resume {folder / 'runs' / 'digits-1'}" in said.err
    assert "--name" in said.err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_more_gpus_than_there_are(folder: Path, dist_train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    said = dist_train("launch", "--device", "cuda", "--nodes", "2", "--gpus-per-node", "3", "train.py")
    assert said.code == 78
    assert "6 GPUs were asked for, 0 are visible here" in said.err
    assert not (folder / "runs").exists()
