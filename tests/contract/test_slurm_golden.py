"""slurm/train.sbatch is what the command in slurm/README.md renders, byte for byte."""

from __future__ import annotations

import difflib
import re
import shlex
from pathlib import Path

import pytest
from warm_commands.warm_launch import cluster_cli

FOLDER = Path(__file__).parents[2] / "slurm"
GOLDEN = FOLDER / "train.sbatch"
PLACE = "/shared/you"


def documented_command() -> str:
    """The README's command, on one line."""
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^    (OMP_NUM_THREADS=\d+ dist-train launch .*?train\.sbatch)$", text, re.M | re.S)
    assert found is not None, "slurm/README.md states the command that renders train.sbatch"
    return re.sub(r"\\\n\s*", "", found[1])


@pytest.mark.proves(
    "`slurm/train.sbatch` is what its README's command renders, and plain `sbatch` runs it",
)
def test_it_is_what_the_stated_command_renders(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    command = documented_command()
    words, _, rest = command.partition(" | ")
    threads, _, *argv = shlex.split(words.replace("$PWD", str(tmp_path)))
    assert rest == f'sed "s#$PWD#{PLACE}#g" > train.sbatch'
    name, _, value = threads.partition("=")
    done = cluster_cli(argv, cwd=tmp_path, env={name: value}, timeout_s=60)
    assert done.code == 0, done
    rendered = done.stdout.replace(str(tmp_path), PLACE)
    golden = GOLDEN.read_text(encoding="utf-8")
    if rendered != golden:
        lines = (text.splitlines() for text in (golden, rendered))
        diff = "\n".join(difflib.unified_diff(*lines, "slurm/train.sbatch", "rendered", lineterm=""))
        again = command.replace("> train.sbatch", f"> {GOLDEN}")
        hint = f'cd "$(mktemp -d)" && touch train.py && {again}'
        pytest.fail(f"{diff}\n\nif this is wanted:\n{hint}", pytrace=False)


def test_it_names_no_place_of_the_machine_that_rendered_it() -> None:
    text = GOLDEN.read_text(encoding="utf-8")
    places = re.findall(r"(?<![\w$\"}/.])/\w[\w./%-]+", text)
    assert {place for place in places if not place.startswith(PLACE)} <= {
        "/bin/bash",
        "/dev/null",
        "/dev/urandom",
    }
