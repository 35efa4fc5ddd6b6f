"""launch_cli: exit code and output."""

from __future__ import annotations

from pathlib import Path

from dist_train.testing import launch_cli


def test_exit_code_and_output(tmp_path: Path) -> None:
    version = launch_cli(["--version"], tmp_path)
    assert (version.code, version.stderr) == (0, "")
    assert version.stdout.startswith("dist-train, version ")
    wrong = launch_cli(["lunch"], tmp_path)
    assert wrong.code == 2
    assert "launch" in wrong.stderr
    assert "lunch" in str(wrong)
