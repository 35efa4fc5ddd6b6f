"""--help: grouped, with examples that can be copied."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import click
import pytest

from dist_train.cli.launch.launch_options import option_groups
from dist_train.cli.main import GROUPS, VERBS, Verbs, cli
from dist_train.cli.options.verb import examples


def test_every_verb_has_a_heading(dist_train: Any) -> None:
    lines = dist_train("--help").out.splitlines()
    headings = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["Options:", *(f"{title}:" for title in GROUPS), "Examples:"]
    shown = [
        line.split()[0] for line in lines[lines.index("Begin:") : lines.index("Examples:")] if line[:1] == " "
    ]
    assert sorted(shown) == sorted(VERBS)
    assert shown.index("init") < shown.index("launch") < shown.index("status") < shown.index("completion")


def test_no_heading_names_a_verb_that_is_not_there() -> None:
    assert [verb for verbs in GROUPS.values() for verb in verbs if verb not in VERBS] == []


def test_a_verb_without_a_heading_is_still_shown(dist_train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERBS, "new", "A verb that no heading names.")
    said = dist_train("--help")
    assert "Others:\n  new         A verb that no heading names.\n" in said.out


def test_options_of_launch_are_grouped_by_launcher(dist_train: Any) -> None:
    said = dist_train("launch", "--help").out
    places = [said.index(f"\n{title}:\n") for title in ("Where", "Size", "Run", "Failures")]
    places += [
        said.index(f"\n{name.capitalize()} (with --launcher {name}):\n") for name in ("slurm", "kubernetes")
    ]
    assert places == sorted(places)
    assert said.index("\nExamples:\n") > places[-1]


def test_no_option_shows_the_name_of_a_python_type() -> None:
    context = click.Context(click.Command("launch"))
    shown = [option.get_help_record(context) for group in option_groups() for option in group.options]
    assert [record[0] for record in shown if record is not None and " TEXT" in record[0]] == []
    assert [record[0] for record in shown if record is not None and "RANGE" in record[0]] == []


def all_verbs() -> Iterator[tuple[str, click.Command]]:
    """Every verb that --help shows, `dist-train` itself included."""
    yield "", cli
    assert isinstance(cli, Verbs)
    for name in VERBS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        yield name, command


@pytest.mark.parametrize(
    ("name", "command"), [pytest.param(*one, id=one[0] or "dist-train") for one in all_verbs()]
)
def test_every_verb_ends_with_examples_that_fit_on_a_screen(name: str, command: click.Command) -> None:
    shown = command.get_help(click.Context(command, info_name=name)).splitlines()
    found = [line for line in shown if "dist-train " in line and line.startswith("  ")]
    assert found, f"{name} --help shows no example"
    assert [line for line in shown if len(line) > 80] == []


def test_explanations_are_aligned_and_commands_unchanged() -> None:
    assert examples("a b  # one", "a long one", "a  # two").splitlines() == [
        "a b  # one",
        "a long one",
        "a    # two",
    ]
    assert examples("echo $?") == "echo $?"


def test_a_long_example_is_continued_as_a_shell_reads_it() -> None:
    long = "dist-train launch train.yaml " + " ".join(f"--option-{number} value" for number in range(5))
    first, second = examples(long).splitlines()
    assert (len(first) <= 78, first[-2:], second[:6]) == (True, " \\", "    --")
    read = subprocess.run(["sh", "-c", f"echo {first}\n{second}"], capture_output=True, text=True, check=True)
    assert read.stdout.strip() == long


def test_sub_verbs_are_shown_in_whole_sentences(dist_train: Any) -> None:
    for verb in ("checkpoint", "config"):
        listed = dist_train(verb, "--help").out.partition("\nVerbs:\n")[2].partition("\n\n")[0]
        assert listed
        assert "..." not in listed
