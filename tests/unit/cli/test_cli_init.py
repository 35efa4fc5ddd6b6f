"""`dist-train init`: three files that fit together; nothing is ever overwritten."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

NAMES = ["model.py", "train.schema.json", "train.yaml"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_it_writes_three_files_and_prints_the_next_command(here: Path, dist_train: Any) -> None:
    said = dist_train("init", "my project")
    assert (said.code, said.err) == (0, "")
    assert names(here / "my project") == NAMES
    assert said.out.endswith("next: cd 'my project' && dist-train launch train.yaml\n")


def test_here_is_the_default(here: Path, dist_train: Any) -> None:
    (here / "README").write_text("other files do not matter")
    said = dist_train("init")
    assert names(here) == ["README", *NAMES]
    assert said.out.endswith("\nnext: dist-train launch train.yaml\n")


def test_the_config_is_without_mistakes(here: Path, dist_train: Any) -> None:
    dist_train("init")
    said = dist_train("config", "check", "train.yaml")
    assert (said.code, said.err) == (0, "")
    plan = dist_train("launch", "train.yaml", "--device", "cpu", "--gpus-per-node", "2", "--dry-run")
    assert plan.code == 0


def test_the_editors_schema_accepts_the_config_and_refuses_a_misspelt_key(
    here: Path, dist_train: Any
) -> None:
    dist_train("init")
    first = (here / "train.yaml").read_text().splitlines()[0]
    assert first.startswith("# yaml-language-server: $schema=./")
    # An editor looks for the file beside the config.
    schema = json.loads((here / first.partition("=")[2]).read_text())
    config = yaml.safe_load((here / "train.yaml").read_text().replace("1e-2", "0.01"))
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(config)
    config["trainer"]["epoch"] = config["trainer"].pop("epochs")
    assert not validator.is_valid(config)


def test_the_model_knows_nothing_of_dist_train(here: Path, dist_train: Any) -> None:
    dist_train("init")
    nodes = list(ast.walk(ast.parse((here / "model.py").read_text())))
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert modules == {"math", "torch", "torch.utils.data"}


@pytest.mark.parametrize("name", NAMES)
def test_existing_files_stay_and_none_is_added(here: Path, dist_train: Any, name: str) -> None:
    (here / name).write_text("mine")
    said = dist_train("init")
    assert (said.code, said.out) == (78, "")
    assert f"{name} exists" in said.err
    assert "dist-train init ANOTHER-FOLDER" in said.err
    assert names(here) == [name]
    assert (here / name).read_text() == "mine"


def test_a_failed_write_leaves_nothing(here: Path, dist_train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from dist_train.cli.verbs import init

    # A folder that appears between the look and the write.
    monkeypatch.setattr(
        init, "_refuse_existing", lambda folder, names: (folder / "train.schema.json").mkdir()
    )
    said = dist_train("init")
    assert said.code == 78
    assert "train.schema.json cannot be written: File exists" in said.err
    assert names(here) == ["train.schema.json"]
