"""Shell completion: the candidates for an incomplete line, and the scripts in the shells themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import BashComplete

from dist_train.cli.main import VERBS, cli
from dist_train.cli.verbs.completion import SHELLS
from dist_train.testing.plugin import require


def offered(line: str) -> list[str]:
    """The candidates at the end of the line; `<file>` and `<dir>` where the shell completes."""
    *words, last = line.split(" ")[1:]
    found = BashComplete(cli, {}, "dist-train", "_DIST_TRAIN_COMPLETE").get_completions(words, last)
    return [item.value if item.type == "plain" else f"<{item.type}>" for item in found]


def test_verbs_and_sub_verbs() -> None:
    assert sorted(offered("dist-train ")) == sorted(VERBS)
    assert offered("dist-train can") == ["cancel"]
    assert offered("dist-train checkpoint ver") == ["verify"]
    assert offered("dist-train completion ") == list(SHELLS)


def test_options_and_their_values() -> None:
    assert offered("dist-train logs --at") == ["--attempt"]
    assert offered("dist-train launch --gpus-per") == ["--gpus-per-node"]
    assert offered("dist-train launch --launcher s") == ["slurm"]
    assert offered("dist-train doctor --launcher s") == ["slurm"]
    assert offered("dist-train doctor --inter") == ["--interface"]
    assert offered("dist-train launch --nodes 2 --device c") == ["cpu", "cuda"]


def test_a_target_is_a_file_and_after_a_script_all_is_the_scripts() -> None:
    assert offered("dist-train launch --nodes 2 tr") == ["<file>"]
    assert offered("dist-train launch train.yaml --max") == ["--max-restarts"]
    assert offered("dist-train launch train.py --max") == ["<file>"]
    assert offered("dist-train launch -m pkg.train --max") == ["<file>"]


@pytest.mark.parametrize(
    "verb",
    [
        "status",
        "logs",
        "events",
        "stacks",
        "doctor --of",
        "cancel",
        "resume",
        "checkpoint verify",
        "checkpoint list",
    ],
)
def test_the_runs_here(make_run: Callable[..., Any], verb: str) -> None:
    make_run("digits-1")
    make_run("text-1")
    assert offered(f"dist-train {verb} ") == ["@last", "digits-1", "text-1"]
    assert offered(f"dist-train {verb} d") == ["digits-1"]
    assert offered(f"dist-train {verb} elsewhere/") == ["<dir>"]


@pytest.mark.parametrize("line", ["launch --run-dir ", "list --all-dirs ", "init "])
def test_folders(line: str) -> None:
    assert offered(f"dist-train {line}") == ["<dir>"]


def test_runs_without_read_permission_are_no_error(
    make_run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run("digits-1")

    def refuse(path: Path) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert offered("dist-train status ") == ["@last"]


def test_configs_and_runs(make_run: Callable[..., Any], here: Path) -> None:
    make_run("digits-1")
    for name in ("b.yml", "a.yaml", "notes.txt"):
        (here / name).write_text("")
    assert offered("dist-train config show ") == ["a.yaml", "b.yml", "digits-1"]
    assert offered("dist-train config check folder/") == ["<file>"]


@pytest.mark.parametrize(
    "line", ["dist-train lunch ", "dist-train checkpoint lst ", "dist-train launch --nodes x "]
)
def test_a_wrong_line_is_no_error_while_it_is_typed(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    offered(line)
    assert capsys.readouterr() == ("", "")


def test_completion_loads_no_torch_and_for_a_verb_no_module(here: Path) -> None:
    code = "import sys, atexit\natexit.register(lambda: print('MODULES', *sys.modules))\n"
    code += "from dist_train.cli.main import main\nmain([])"
    for line, at, heavy in (
        ("dist-train la", 1, {"pydantic", "dist_train.cli.verbs.launch"}),
        ("dist-train status d", 2, {"rich"}),
    ):
        request = {"COMP_WORDS": line, "COMP_CWORD": str(at), "_DIST_TRAIN_COMPLETE": "bash_complete"}
        done = subprocess.run(
            [sys.executable, "-P", "-c", code],
            env={**os.environ, **request},
            capture_output=True,
            text=True,
            check=True,
        )
        assert "MODULES" in done.stdout
        assert not set(done.stdout.split()) & {"torch", *heavy}


# Each prints what the shell would offer for `dist-train la`, and for a run's name.
IN_SHELL = {
    "bash": """
        eval "$(dist-train completion bash)"
        ask() { COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=(); $f dist-train; echo "$COMPREPLY"; }
        f=$(complete -p dist-train | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
        ask dist-train la; ask dist-train status dig
    """,
    "zsh": """
        compdef() { f=$1 }
        compadd() { print -- ${(P)@[-1]} }
        _describe() { print -- ${(P)@[3]} }
        eval "$(dist-train completion zsh)"
        words=(dist-train la) CURRENT=2; $f
        words=(dist-train status dig) CURRENT=3; $f
    """,
    "fish": """
        dist-train completion fish | source
        complete -C "dist-train la"; complete -C "dist-train status dig"
    """,
}


@pytest.mark.multiprocess
@pytest.mark.parametrize("shell", SHELLS)
def test_in_the_shell_itself(make_run: Callable[..., Any], here: Path, tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        require(shell, f"no {shell} on the PATH")
    make_run("digits-1")
    command = tmp_path / "bin" / "dist-train"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m dist_train.cli.main "$@"\n')
    command.chmod(0o755)
    quiet = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    done = subprocess.run(
        [shell, *quiet, "-c", IN_SHELL[shell]],
        env={**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    first, second = done.stdout.strip().splitlines()
    assert first.startswith("launch"), done.stdout
    assert second == "digits-1"
