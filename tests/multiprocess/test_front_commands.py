"""Run every command of the README, of docs/start and of every --help example: with the installed wheel, an
empty HOME, in another folder.

A new command there is run automatically. Exceptions are listed with a reason.
"""

from __future__ import annotations

import re
import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from installed_wheel import ROOT, Installed
from written_commands import Written, of_help, of_markdown

from dist_train.cli.launch.arguments import parse
from dist_train.cli.main import VERBS, Verbs, cli
from dist_train.cli.verbs.launch import make_command
from dist_train.testing.leak_check import GRACE_S, MARKER
from dist_train.testing.process_tree import describe, end, with_environ

pytestmark = [pytest.mark.multiprocess, pytest.mark.xdist_group("wheel")]

# Placeholders -> what replaces them here.
STANDS_FOR = {
    "CONFIG.yaml": "train.yaml",
    "SCRIPT.py": "train.py",
    "IMAGE": "registry.example/you/train:1",
    "DATA": "--dummy --image-size 16 --width 8 --limit 64 --batch-size 32 --epochs 1",
    "[RUN]": "digits-1",
    "RUN": "digits-1",
}
# Commands that need something the reader has: how it is made here.
FIRST = [
    (r"^dist-train init *(#|$)", "mkdir new && cd new"),
    (r"checkpoint import model\.pt", "dist-train checkpoint export digits-1 --out model.pt"),
    (
        r"checkpoint import dcp/",
        'python -c "import torch, torch.distributed.checkpoint as dcp; '
        "dcp.save({'model': torch.nn.Linear(2, 2).state_dict()}, checkpoint_id='dcp', no_dist=True)\"",
    ),
    (r"predict model\.safetensors", "dist-train checkpoint export digits-1 --out model.safetensors"),
    (r"(compare|diff) digits-1 ", "cp -r runs/digits-1 runs/digits-2"),
    (r"notify ", "notify() { true; }"),
    (r"doctor --of ", "dist-train doctor"),
]
# Not run: a pattern of the command, and why.
NOT_RUN = [
    (r"^make ", "of a checkout, not of the wheel; CI runs them"),
    (r"^pip install ", "asks a package index"),
    (r"\| source( |$)", "fish's; tests/unit/cli/test_cli_completion.py runs it there"),
]
# Needs GPUs; a run that goes on; a job on a cluster; a bucket: only parsed, nothing is started.
ONLY_PARSED = [
    *(r"--gpus \d", r"--device cuda", r"--gpus auto"),
    r"^dist-train stacks",
    r"^dist-train doctor .*--launcher",
    r"^dist-train checkpoint copy .*s3://",
]
# Needs a cluster: planned with --dry-run.
CLUSTER = r"--launcher (slurm|kubernetes)"
# Needs a terminal: gets one.
ON_A_TERMINAL = r"--progress live"
TERMINAL = "python -c 'import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))'"
# A training without a length: shortened.
TRAINED = r"launch\b.*\.yaml\b(?!.*(trainer\.epochs|--dry-run))"
SHORT = "trainer.epochs=2"
# Commands at the same time, each in a folder of its own: most wait for processes to start.
AT_ONCE = 3
LIMIT_S = 240.0

TRAIN = "import os, sys\nprint('rank', os.environ['RANK'], sys.argv[1:])\n"


def written() -> list[Written]:
    """Each command once, with its first location."""
    found = [*_documents(), *_helps()]
    once: dict[str, Written] = {}
    for one in found:
        once.setdefault(one.command.partition("  #")[0].rstrip(), one)
    return list(once.values())


def _documents() -> Iterator[Written]:
    for path in [*sorted(ROOT.glob("README*.md")), *sorted(ROOT.glob("docs/start/*.md"))]:
        yield from of_markdown(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))


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
    """The command with placeholders filled in; one for a cluster is only planned."""
    for word, meaning in STANDS_FOR.items():
        command = re.sub(rf"(?<![\w=]){re.escape(word)}(?!\w)", meaning, command)
    if re.search(CLUSTER, command):
        command = command.replace(" --detach", " --dry-run")
        command = re.sub(r"\| kubectl .*", "> manifests.yaml", command)
        if "--dry-run" not in command:
            command = command.replace("dist-train launch", "dist-train launch --dry-run", 1)
    elif re.search(TRAINED, command):
        command = re.sub(r"(\.yaml\b[^#]*?)(\s*(#.*)?)$", rf"\1 {SHORT}\2", command)
    if re.search(ON_A_TERMINAL, command):
        command = f"TERM=xterm {TERMINAL} {command}"
    before = [first for pattern, first in FIRST if re.search(pattern, command)]
    return " && ".join([*before, command])


COMMANDS = written()
RUN = [one for one in COMMANDS if reason_not_to_run(one.command) is None and not only_parsed(one.command)]
PARSED = [one for one in COMMANDS if reason_not_to_run(one.command) is None and only_parsed(one.command)]


@pytest.fixture(scope="module")
def folder(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory: the examples, a script, a package, a config, a profiled run of four ranks."""
    folder = tmp_path_factory.mktemp("newcomer")
    shutil.copytree(ROOT / "examples", folder / "examples")
    (folder / "train.py").write_text(TRAIN)
    (folder / "my_package").mkdir()
    (folder / "my_package" / "train.py").write_text(TRAIN)
    here = installed.in_folder(folder, folder / "home")
    for words in (
        ["init"],
        [
            "launch",
            "--name",
            "digits-1",
            "--nodes",
            "2",
            "--gpus-per-node",
            "2",
            "--profile",
            "3:4",
            "examples/digits.yaml",
            SHORT,
        ],
    ):
        said = here.run(["dist-train", *words])
        assert said.code == 0, str(said)
    return folder


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit code, its output on both streams, the processes and files it left."""

    code: int
    output: str
    left: list[str]


@pytest.fixture(scope="module")
def ended(
    request: pytest.FixtureRequest,
    installed: Installed,
    folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[Written, Ended]:
    """Run every command of the selected tests, a few at a time."""
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    chosen = [call.params["one"] for call in calls if call is not None and "one" in call.params]
    places = [tmp_path_factory.mktemp("of") for _ in chosen]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = pool.map(lambda one, place: run_command(one, installed, folder, place), chosen, places)
        return dict(zip(chosen, results, strict=True))


def run_command(one: Written, installed: Installed, folder: Path, place: Path) -> Ended:
    """Run it in a copy of the folder, with an empty HOME."""
    here, home, tmp, mark = place / "here", place / "home", place / "t", secrets.token_hex(8)
    shutil.copytree(folder, here)
    home.mkdir()
    tmp.mkdir()
    # A mark of its own: the leak check of a test does not see what ran before it.
    environ = {**installed.in_folder(here, home).environ, MARKER: mark, "TMPDIR": str(tmp)}
    with (place / "output.txt").open("w+") as output:
        words = ["timeout", f"{LIMIT_S:.0f}", "bash", "-o", "pipefail", "-c", as_it_runs_here(one.command)]
        code = subprocess.run(
            words, cwd=here, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        deadline = time.monotonic() + GRACE_S
        while (left := with_environ({MARKER: mark})) and time.monotonic() < deadline:
            time.sleep(0.05)
        leaks = [describe(process) for process in left]
        end(left)
        # torch's own cache, one for all its processes.
        leaks += [path.name for path in tmp.iterdir() if not path.name.startswith("torchinductor_")]
        output.seek(0)
        return Ended(code.returncode, output.read(), leaks)


@pytest.mark.proves(
    "Every command of README, of docs/start and of each `--help` runs from the installed wheel, with an "
    "empty HOME, elsewhere",
    limits="those for a cluster with `--dry-run`; those for GPUs, a bucket, a run that goes on only parsed",
)
@pytest.mark.proof
@pytest.mark.timeout(1200)  # the first waits for all of them
@pytest.mark.parametrize("one", RUN, ids=str)
def test_it_runs(one: Written, ended: dict[Written, Ended]) -> None:
    assert (ended[one].code, ended[one].left) == (0, []), (
        f"{as_it_runs_here(one.command)}\n{ended[one].output}"
    )
    assert "Traceback" not in ended[one].output


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


def test_commands_that_need_what_is_not_here_are_parsed() -> None:
    for one in PARSED:  # no parametrization: an empty one would be a skipped test
        command = as_it_runs_here(one.command).partition("  #")[0]
        for part in re.split(r"&&|;", command):
            program, *words = shlex.split(part)
            if program == "dist-train":
                parse_alone(words)


def parse_alone(words: list[str]) -> None:
    """Parse as the command line does, without starting the verb."""
    if words[0] == "launch":
        parse(make_command(), words[1:])
        return
    context = cli.make_context("dist-train", list(words))
    while isinstance(group := context.command, click.Group):
        name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        context = command.make_context(name, rest, parent=context)


def test_commands_are_found_and_no_exception_is_stale() -> None:
    assert len(RUN) > 25
    places = {one.where.partition(":")[0] for one in RUN}
    assert places >= {"README.md", "docs/start/local.md", "docs/start/slurm.md", "docs/start/kubernetes.md"}
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


def test_a_training_is_shortened_unless_it_has_a_length() -> None:
    for command, here in (
        (
            "dist-train launch a.yaml --nodes 2  # so",
            "dist-train launch a.yaml --nodes 2 trainer.epochs=2  # so",
        ),
        ("dist-train init x && dist-train launch a.yaml", None),
        ("dist-train launch a.yaml trainer.epochs=3", "dist-train launch a.yaml trainer.epochs=3"),
        ("dist-train launch a.yaml --dry-run", "dist-train launch a.yaml --dry-run"),
        ("dist-train launch train.py --lr 0.1", "dist-train launch train.py --lr 0.1"),
        ("dist-train config check a.yaml", "dist-train config check a.yaml"),
    ):
        shown = as_it_runs_here(command)
        assert shown == here or (here is None and shown.endswith("launch a.yaml trainer.epochs=2")), shown


@pytest.mark.parametrize("words", ["status --gpu 3", "launch --gpuss 0,3 train.py", "checkpoint lst"])
def test_a_wrong_option_is_noticed_without_running_it(words: str) -> None:
    with pytest.raises(click.UsageError):
        parse_alone(words.split())
