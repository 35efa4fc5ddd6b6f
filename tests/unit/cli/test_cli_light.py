"""In fresh interpreters: no verb loads torch, and --help loads no verb."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DIGITS = Path(__file__).parents[3] / "examples" / "digits.yaml"


def loaded_after(words: list[str]) -> tuple[int, set[str]]:
    """The exit code, and every module of a fresh interpreter after `dist-train WORDS`."""
    script = (
        "import sys\nfrom dist_train.cli.main import run\n"
        f"code = run({words!r})\nprint('MODULES', code, *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    _, code, *names = done.stdout[done.stdout.index("MODULES") :].split()
    return int(code), set(names)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["launch", str(DIGITS), "--device", "cpu", "--dry-run"], 0),
        (["launch", "--help"], 0),
        (["resume"], 66),
        (["status"], 66),
        (["logs"], 66),
        (["cancel"], 66),
        (["list"], 0),
        (["checkpoint", "verify"], 66),
        (["checkpoint", "export", "--out", "m.pt"], 66),
        (["predict"], 66),
        (["config", "check", str(DIGITS)], 0),
        (["config", "schema"], 0),
        (["estimate", str(DIGITS), "--gpu-memory", "1"], 2),
        (["estimate", "no-such-run"], 66),
        (["env", "--explain"], 0),
        (["init", "new"], 0),
        (["drill", "--help"], 0),
        (["completion", "fish"], 0),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else None,
)
def test_no_verb_loads_torch(here: Path, words: list[str], code: int) -> None:
    found, modules = loaded_after(words)
    assert found == code
    assert "torch" not in modules
    assert not {name for name in modules if name.startswith(("dist_train.checkpoint", "dist_train.agent"))}


def test_help_loads_no_verb_and_nothing_heavy(here: Path) -> None:
    _, modules = loaded_after(["--help"])
    assert not modules & {
        "torch",
        "pydantic",
        "yaml",
        "rich",
        "dist_train.registry",
        "dist_train.cli.verbs.launch",
    }
