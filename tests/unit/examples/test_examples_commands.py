"""Every `dist-train launch` command in the examples and their README can be planned."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
from example_runs import EXAMPLES

from dist_train.cli.main import run


def commands() -> list[tuple[str, str]]:
    """(file, command): from docstrings of scripts, comments of configs, and README."""
    found = []
    for path in sorted([*EXAMPLES.rglob("*.py"), *EXAMPLES.rglob("*.yaml"), EXAMPLES / "README.md"]):
        text = path.read_text()
        commands = (ast.get_docstring(ast.parse(text)) or "") if path.suffix == ".py" else text
        for line in commands.splitlines():
            match = re.match(r"[# ]*(dist-train launch .*?)(  +#.*)?$", line)
            if match:
                found.append((str(path.relative_to(EXAMPLES)), match[1]))
    return found


def test_commands_are_found() -> None:
    files = {file for file, _ in commands()}
    assert {"digits.yaml", "README.md", "imagenet_style.py", "bring_your_own_script/after.py"} <= files


@pytest.mark.parametrize(("file", "command"), commands())
def test_the_command_can_be_planned(
    file: str, command: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(EXAMPLES.parent if "examples/" in command else (EXAMPLES / file).parent)
    words = shlex.split(command)[2:]
    if "--gpus" in words:  # no GPU here: tests/unit/jobs tests the choice
        at = words.index("--gpus")
        del words[at : at + 2]
    assert run(["launch", "--dry-run", "--device", "cpu", *words]) == 0, capfd.readouterr().err
    assert capfd.readouterr().out, "the plan"


def test_every_example_is_in_the_readme() -> None:
    readme = (EXAMPLES / "README.md").read_text()
    names = {path.name for path in [*EXAMPLES.rglob("*.py"), *EXAMPLES.rglob("*.yaml")]} - {"spirals.py"}
    missing = {name for name in names if f"`{name}`" not in readme}
    assert not missing, missing


def test_no_example_hides_torch_distributed() -> None:
    """A variable called `dist` hides `import torch.distributed as dist` where the code is pasted."""
    for path in sorted(EXAMPLES.rglob("*.py")):
        names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        assert "dist" not in names, path
        assert "import torch.distributed as dist" not in Path(path).read_text()
