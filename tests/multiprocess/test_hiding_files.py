"""A file beside the script that has the name of another module: a rank imports what plain Python would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from warm_commands.warm_launch import launch_cli

from dist_train import env

NAMES = ("random", "json", "secrets", "token", "os", "wave")
SCRIPT = f"""
import importlib, sys
for name in {NAMES}:
    print(name, getattr(importlib.import_module(name), "WHOSE", "python's"), flush=True)
"""


def write_files(folder: Path) -> Path:
    for name in NAMES:
        (folder / f"{name}.py").write_text("WHOSE = 'the script'\n")
    script = folder / "train.py"
    script.write_text(SCRIPT)
    return script


@pytest.mark.multiprocess
@pytest.mark.parametrize("method", ["auto", "spawn"])
@pytest.mark.parametrize("kind", ["script", "module"])
def test_a_file_beside_the_script_is_imported_as_by_python(tmp_path: Path, method: str, kind: str) -> None:
    script = write_files(tmp_path)
    target = [str(script)] if kind == "script" else ["-m", "train"]
    plain = subprocess.run(
        [sys.executable, *target], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()
    assert {"random the script", "os python's"} <= set(plain)
    words = ["launch", "--device", "cpu", "--run-dir", str(tmp_path / "run"), *target]
    result = launch_cli(words, tmp_path, {env.START_METHOD: method}, timeout_s=120)
    assert result.code == 0, result
    assert [line for line in result.stdout.splitlines() if line.split(" ")[0] in NAMES] == plain
    said = [line for line in result.stderr.splitlines() if "each rank imports torch by itself" in line]
    assert len(said) == (method == "auto"), result
    assert all(f".py in {tmp_path} hides" in line and "rename it" in line for line in said)


@pytest.mark.multiprocess
def test_an_import_that_fails_by_such_a_file_has_a_hint(tmp_path: Path) -> None:
    (tmp_path / "secrets.py").write_text("KEY = 1\n")
    script = tmp_path / "train.py"
    script.write_text("from secrets import randbits\n")
    words = ["launch", "--device", "cpu", "--run-dir", str(tmp_path / "run"), str(script)]
    result = launch_cli(words, tmp_path, timeout_s=120)
    assert result.code == 1, result
    assert (
        f"hint: {tmp_path / 'secrets.py'} is imported in place of Python's own module secrets"
        in result.stderr
    )
