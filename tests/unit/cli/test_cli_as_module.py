"""`python -m dist_train`: the same command as `dist-train`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from dist_train import __version__


def as_module(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dist_train", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=90)


def test_the_module_is_the_command(tmp_path: Path) -> None:
    done = as_module(tmp_path, "--version")
    assert (done.returncode, done.stdout) == (0, f"dist-train, version {__version__}\n"), done
    refused = as_module(tmp_path, "lunch")
    assert refused.returncode == 2
    assert "Usage: dist-train " in refused.stderr
    assert "Did you mean 'launch'?" in refused.stderr


def test_files_of_the_folder_do_not_stand_in_for_modules_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')\n")
    (tmp_path / "train.py").touch()
    done = as_module(tmp_path, "launch", "--device", "cpu", "--dry-run", "train.py")
    assert done.returncode == 0, done
