"""The generated pages hold what the code has: every key, verb, public name, package and hint."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from pydantic import Field
from reference_pages import command_line, configuration, error_hints, packages, python_api, repository

import dist_train as dt
from dist_train.agent.failures.error_hints import TABLE
from dist_train.cli.main import GROUPS
from dist_train.config.component import Section
from dist_train.config.schema import RunConfig

ROOT = Path(__file__).resolve().parents[3]


class Example(Section):
    """What it is for."""

    often: int = Field(default=3, ge=1, description="How often.  [default: thrice]")


def test_every_section_and_key_of_the_schema_is_there() -> None:
    text = configuration.page()
    assert "| optimizer | `adam`, `adamw`, `sgd` |" in text
    assert "| `batch_size` | integer, at least 1 | required |" in text
    for name in RunConfig.model_fields:
        assert f"| `{name}` |" in text
    for section in ("data", "trainer", "checkpoint", "checkpoint.keep_best", "launch", "launch.slurm"):
        assert f"\n## {section}\n" in text


def test_a_default_in_words_takes_the_place_of_the_value() -> None:
    assert "| `often` | integer, at least 1 | thrice | How often. |" in configuration._section("x", Example)


def test_every_verb_and_those_within_it_have_their_help() -> None:
    text = command_line.page()
    for verb in (*sum(GROUPS.values(), ()), "checkpoint verify", "config schema"):
        assert f"\n### dist-train {verb}\n" in text
    assert "--sbatch-arg" in text


def test_every_public_name_is_described() -> None:
    text = python_api.page()
    for name in dt.__all__:
        assert name.startswith("_") or f" dist_train.{name}(" in text
    assert re.search(r"\{py:method\} load_latest\(state: .*\) -> .*Restored", text)
    assert "0x" not in text


def test_every_package_of_the_table_has_its_place() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        table = tomllib.load(file)["tool"]["dist-train"]["architecture"]["packages"]
    text = packages.page()
    assert [name for name in table if f"\n## {name}" not in text] == []


def test_each_error_with_a_hint_has_a_row() -> None:
    rows = [line for line in error_hints.page().splitlines() if line.startswith("| `")]
    assert len(rows) == len(TABLE)
    assert any("invalid device ordinal" in row and "devices" in row for row in rows)


def test_links_between_the_repository_and_the_site_are_followed() -> None:
    start = ROOT / "docs" / "start"
    assert repository.relinked("[by hand](../../slurm/README.md)", start, start) == (
        "[by hand](../repository/slurm.md)"
    )
    assert repository.relinked("[a](docs/exit-codes.md#x) [b](https://a.b/c.md) [c](#d)", ROOT, start) == (
        "[a](../exit-codes.md#x) [b](https://a.b/c.md) [c](#d)"
    )
