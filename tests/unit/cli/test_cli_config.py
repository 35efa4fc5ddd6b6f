"""`config show|schema|check`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dist_train.config import dump_config, load_config
from dist_train.rundir.records import write_json_atomic

DIGITS = Path(__file__).parents[3] / "examples" / "digits.yaml"


def test_show_prints_the_origin_of_each_value(dist_train: Any) -> None:
    said = dist_train("config", "show", DIGITS, "seed=7")
    assert (said.code, said.err) == (0, "")
    lines = dict(line.split("   # ") for line in said.out.splitlines() if "   # " in line)
    assert lines["seed: 7"] == "override"
    assert lines[f"  epochs: {load_config(DIGITS).config.trainer.epochs}"].startswith(f"{DIGITS}:")
    assert lines["deterministic: none"] == "default"


def test_show_as_json(dist_train: Any) -> None:
    found = json.loads(dist_train("config", "show", DIGITS, "seed=7", "--json").out)
    assert found["schema_version"] == 1
    assert found["config"]["seed"] == 7
    assert found["origins"]["seed"] == "override"


def test_show_reads_a_runs_own_config(make_run: Callable[..., Any], dist_train: Any) -> None:
    made = make_run("a-1")
    made.run.config.write_text(dump_config(load_config(DIGITS, ["seed=11"]).config))
    said = dist_train("config", "show", "a-1")
    assert "seed: 11   # runs/a-1/config.yaml:" in said.out


def test_values_of_a_run_have_the_origin_that_its_launch_had(
    make_run: Callable[..., Any], dist_train: Any
) -> None:
    made, resolved = make_run("a-1"), load_config(DIGITS, ["seed=11"])
    made.run.config.write_text(dump_config(resolved.config))
    write_json_atomic(made.run.config_origins, {"origins": resolved.origins})
    said = dist_train("config", "show", "a-1", "trainer.epochs=2")
    assert "seed: 11   # override" in said.out
    assert f"workers: 0   # {DIGITS}:" in said.out
    assert "deterministic: none   # default" in said.out
    assert "  epochs: 2   # override" in said.out
    made.run.config_origins.write_text('{"origins": [')
    assert "seed: 11   # runs/a-1/config.yaml:" in dist_train("config", "show", "a-1").out


def test_a_run_of_a_script_has_no_config(make_run: Callable[..., Any], dist_train: Any) -> None:
    make_run("a-1")
    said = dist_train("config", "show", "a-1")
    assert said.code == 66
    assert "a script or a module" in said.err


def test_schema_is_json_schema(dist_train: Any) -> None:
    schema = json.loads(dist_train("config", "schema").out)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert "trainer" in schema["properties"]
    found = json.loads(dist_train("config", "schema", "--json").out)
    assert (found["schema_version"], found["schema"]) == (1, schema)


def test_check_prints_ok_and_what_was_checked(dist_train: Any) -> None:
    said = dist_train("config", "check", DIGITS, "trainer.epochs=2")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"ok: {DIGITS}: ")
    for text in ("model, data.train", "strategy ddp", "launcher local"):
        assert text in said.out
    assert json.loads(dist_train("config", "check", DIGITS, "--json").out)["ok"] is True


@pytest.mark.parametrize(
    ("override", "texts"),
    [
        ("optimizer.args.lrr=1", ["optimizer.args", "lr"]),
        ("model=convnett", ["model", "convnet"]),
        ("strategy=ddpp", ["strategy", "did you mean `ddp`"]),
        ("launch.launcher=lokal", ["launch.launcher", "local"]),
        ("launch.time=soon", ["'soon'"]),
        ("trainer.epochs=many", ["trainer.epochs", "many"]),
    ],
)
def test_check_finds_mistakes(dist_train: Any, override: str, texts: list[str]) -> None:
    said = dist_train("config", "check", DIGITS, override)
    assert (said.code, said.out) == (78, "")
    for text in texts:
        assert text in said.err


def test_wrong_values_of_a_launchers_section_are_named_with_their_lines(here: Path, dist_train: Any) -> None:
    text = DIGITS.read_text().rstrip()
    at = len(text.splitlines()) + 2
    section = '  slurm:\n    partition: "a b"\n    requeue: maybe\n    setup: [ok, 3]\n'
    (here / "a.yaml").write_text(f"{text}\n{section}")
    lines = [
        f"a.yaml:{at}: `launch.slurm.partition`: it holds characters",
        f"a.yaml:{at + 1}: `launch.slurm.requeue`: Input should be 'yes', 'no' or 'site' (got 'maybe')",
        f"a.yaml:{at + 2}: `launch.slurm.setup.1`: Input should be a valid string (got 3)",
    ]
    said = dist_train("config", "check", "a.yaml")
    assert (said.code, [line for line in lines if line not in said.err]) == (78, []), said.err
    typed = dist_train("launch", "--dry-run", "--launcher", "slurm", "--device", "cpu", "-p", "c d", "a.yaml")
    assert (typed.code, [line for line in lines[1:] if line not in typed.err]) == (78, []), typed.err
    assert "--partition: it holds characters that no name in Slurm has (got 'c d')" in typed.err


def test_check_reads_the_sections_of_launchers(
    dist_train: Any, monkeypatch: pytest.MonkeyPatch, pretend: Any
) -> None:
    from dist_train import registry

    names = registry.names
    monkeypatch.setattr(
        registry, "names", lambda kind: ["slurm", "local"] if kind == "launchers" else names(kind)
    )
    monkeypatch.setattr(registry, "load", lambda kind, name: pretend)
    said = dist_train("config", "check", DIGITS, "launch.slurm.partitoin=gpu")
    assert said.code == 78
    assert ".partitoin`" in said.err
    assert "did you mean `partition`?" in said.err
    assert dist_train("config", "check", DIGITS, "launch.slurm.partition=gpu").code == 0
