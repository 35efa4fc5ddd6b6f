"""Every command of README and of every --help example, as a newcomer types it: the installed wheel, an empty
HOME, another folder.

A new command in README or in a --help runs here by itself. One that cannot is named below, with the reason.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from installed_wheel import ROOT, Installed
from written_commands import Written, of_help, of_markdown

from dist_train.cli.arguments import parse
from dist_train.cli.launch import make_command
from dist_train.cli.main import VERBS, Verbs, cli

pytestmark = pytest.mark.multiprocess

# What stands for something of the reader's own -> what it is here.
STANDS_FOR = {
    "CONFIG.yaml": "train.yaml",
    "SCRIPT.py": "train.py",
    "IMAGE": "registry.example/you/train:1",
    "[RUN]": "digits-1",
    "RUN": "digits-1",
}
# Commands about something that a reader has already: how it is made here.
FIRST = [
    (r"checkpoint import model\.pt", "dist-train checkpoint export digits-1 --out model.pt"),
    (r"predict model\.safetensors", "dist-train checkpoint export digits-1 --out model.safetensors"),
]
# Not run: a pattern of the command, and why.
NOT_RUN = [
    (r"^make ", "of a checkout, not of the wheel; CI runs them"),
    (r"^pip install ", "asks a package index"),
    (r"\| source( |$)", "fish's; tests/unit/cli/test_cli_completion.py runs it there"),
]
# Needs GPUs: its words are parsed, nothing is started.
ONLY_PARSED = [r"--gpus \d", r"--device cuda", r"--gpus auto"]
# Needs a cluster: planned with --dry-run.
CLUSTER = r"--launcher (slurm|kubernetes)"
LIMIT_S = 180.0

TRAIN = "import os, sys\nprint('rank', os.environ['RANK'], sys.argv[1:])\n"


def written() -> list[Written]:
    """Each command once, where it stands first."""
    found = [*_readmes(), *_helps()]
    once: dict[str, Written] = {}
    for one in found:
        once.setdefault(one.command.partition("  #")[0].rstrip(), one)
    return list(once.values())


def _readmes() -> Iterator[Written]:
    for path in sorted(ROOT.glob("README*.md")):
        yield from of_markdown(path.name, path.read_text(encoding="utf-8"))


def _helps() -> Iterator[Written]:
    assert isinstance(cli, Verbs)
    yield from of_help("dist-train", cli)
    for verb in VERBS:
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        yield from of_help(f"dist-train {verb}", command)


def reason_not_to_run(command: str) -> str | None:
    return next((why for pattern, why in NOT_RUN if re.search(pattern, command)), None)


def only_parsed(command: str) -> bool:
    return any(re.search(pattern, command) for pattern in ONLY_PARSED)


def as_it_runs_here(command: str) -> str:
    """With the reader's own words filled in, and what goes to a cluster only planned."""
    for word, meaning in STANDS_FOR.items():
        command = re.sub(rf"(?<![\w=]){re.escape(word)}(?!\w)", meaning, command)
    if re.search(CLUSTER, command):
        command = command.replace(" --detach", " --dry-run")
        command = re.sub(r"\| kubectl .*", "> manifests.yaml", command)
        if "--dry-run" not in command:
            command = command.replace("dist-train launch", "dist-train launch --dry-run", 1)
    before = [first for pattern, first in FIRST if re.search(pattern, command)]
    return " && ".join([*before, command])


COMMANDS = written()
RUN = [one for one in COMMANDS if reason_not_to_run(one.command) is None and not only_parsed(one.command)]
PARSED = [one for one in COMMANDS if reason_not_to_run(one.command) is None and only_parsed(one.command)]


@pytest.fixture(scope="module")
def folder(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the newcomer is: the examples, a script, a package, a config, and a run of four ranks."""
    folder = tmp_path_factory.mktemp("newcomer")
    shutil.copytree(ROOT / "examples", folder / "examples")
    (folder / "train.py").write_text(TRAIN)
    (folder / "my_package").mkdir()
    (folder / "my_package" / "train.py").write_text(TRAIN)
    here = installed.in_folder(folder, folder / "home")
    for words in (
        ["init"],
        ["launch", "--name", "digits-1", "--nodes", "2", "--gpus-per-node", "2", "examples/digits.yaml"],
    ):
        said = here.run(["dist-train", *words])
        assert said.code == 0, str(said)
    return folder


@pytest.mark.proof
@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("one", RUN, ids=str)
def test_it_runs(one: Written, installed: Installed, folder: Path, tmp_path: Path) -> None:
    here, home = tmp_path / "here", tmp_path / "home"
    shutil.copytree(folder, here)
    home.mkdir()
    command = as_it_runs_here(one.command)
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=here,
        env=installed.in_folder(here, home).environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.proof
@pytest.mark.timeout(LIMIT_S + 60)
def test_bare_launch_in_an_empty_folder(installed: Installed, tmp_path: Path) -> None:
    for name in ("here", "home"):
        (tmp_path / name).mkdir()
    newcomer = installed.in_folder(tmp_path / "here", tmp_path / "home")
    said = newcomer.run(["dist-train", "launch", "--nodes", "2", "--gpus-per-node", "4"], timeout_s=LIMIT_S)
    assert said.code == 0, str(said)
    assert "training the bundled digits example" in said.stderr
    assert "8 ranks" in said.stdout
    assert sorted(path.name for path in newcomer.cwd.iterdir()) == ["runs"]
    assert list(newcomer.home.iterdir()) == []


def test_the_words_of_those_that_need_gpus_are_ours() -> None:
    for one in PARSED:  # no parametrization: while there is none it would be a skipped test
        command = as_it_runs_here(one.command).partition("  #")[0]
        for part in re.split(r"&&|;", command):
            program, *words = shlex.split(part)
            if program == "dist-train":
                parse_alone(words)


def parse_alone(words: list[str]) -> None:
    """As the command line does it, up to the moment at which the verb would begin."""
    if words[0] == "launch":
        parse(make_command(), words[1:])
        return
    context = cli.make_context("dist-train", list(words))
    while isinstance(group := context.command, click.Group):
        name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        context = command.make_context(name, rest, parent=context)


def test_there_are_commands_and_no_stale_reason() -> None:
    assert len(RUN) > 25
    assert {one.where.partition(":")[0] for one in RUN} >= {"README.md"}
    stale = [
        pattern for pattern, _ in NOT_RUN if not any(re.search(pattern, one.command) for one in COMMANDS)
    ]
    assert stale == []


SAMPLE = """\
See `dist-train launch --help`, or `make help`, or `status`.

    dist-train launch a.yaml --launcher slurm \\
        -p gpu
    dist-train launch … --dry-run | kubectl apply -f -   # the same
    accuracy   0.98
    RANK=1 dist-train env

```
make demo
import dist_train as dt
```
"""


def test_commands_are_found_in_sentences_and_blocks_and_in_full() -> None:
    assert [str(one) for one in of_markdown("x", SAMPLE)] == [
        "x:1: dist-train launch --help",
        "x:3: dist-train launch a.yaml --launcher slurm -p gpu",
        "x:5: dist-train launch a.yaml --launcher slurm -p gpu --dry-run | kubectl apply -f -   # the same",
        "x:7: RANK=1 dist-train env",
        "x:10: make demo",
    ]


def test_what_goes_to_a_cluster_is_planned() -> None:
    slurm = "dist-train launch CONFIG.yaml --launcher slurm"
    assert as_it_runs_here(slurm) == "dist-train launch --dry-run train.yaml --launcher slurm"
    assert as_it_runs_here(f"{slurm} --detach") == "dist-train launch train.yaml --launcher slurm --dry-run"
    applied = as_it_runs_here("dist-train launch a.yaml --launcher kubernetes --dry-run | kubectl apply -f -")
    assert applied.endswith("--dry-run > manifests.yaml")
    assert as_it_runs_here("dist-train status [RUN]") == "dist-train status digits-1"


@pytest.mark.parametrize("words", ["status --gpu 3", "launch --gpuss 0,3 train.py", "checkpoint lst"])
def test_a_wrong_word_is_noticed_without_running_it(words: str) -> None:
    with pytest.raises(click.UsageError):
        parse_alone(words.split())
