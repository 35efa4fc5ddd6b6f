"""The launcher's options as the command line has them: lists repeat, the rest is given once."""

from __future__ import annotations

from pathlib import Path
from typing import get_origin

import pytest
from warm_commands.warm_launch import cluster_cli

from dist_train.cli.launch.arguments import parse
from dist_train.cli.verbs.launch import make_command
from dist_train.errors import UsageError
from launchers._kubernetes.manifest.kubernetes_options import Options

LISTS = [name for name, field in Options.model_fields.items() if get_origin(field.annotation) is tuple]


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


@pytest.mark.parametrize("name", LISTS)
def test_lists_are_given_by_repeating_the_option(name: str) -> None:
    words = parse(make_command(), [flag(name), "a=1", flag(name), "b=2", "train.py"])
    assert words.options == {name: ("a=1", "b=2")}


def test_there_are_lists() -> None:
    assert sorted(LISTS) == ["annotation", "node_selector", "resource", "secret_ref", "toleration"]


@pytest.mark.parametrize("name", sorted({*Options.model_fields} - {*LISTS, "source"}))
def test_other_options_have_one_value(name: str) -> None:
    words = parse(make_command(), [flag(name), "x", flag(name), "x", "train.py"])
    assert words.options == {name: "x"}
    with pytest.raises(UsageError, match=f"{flag(name)} is given twice: x and y"):
        parse(make_command(), [flag(name), "x", flag(name), "y", "train.py"])


def test_what_is_kept_for_resume_is_no_option() -> None:
    assert "source" not in {option.name for option in make_command().params}


def test_a_secrets_value_given_by_mistake_is_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    words = ["--image", "reg.example/x:1", "--secret-ref", "HF_TOKEN=hf_canary", "--dry-run", "train.py"]
    done = cluster_cli(["launch", "--launcher", "kubernetes", *words], cwd=tmp_path)
    assert done.code == 78, done
    assert "--secret-ref: HF_TOKEN=… is not of the form NAME=SECRET/KEY" in done.stderr
    assert "hf_canary" not in done.stderr
