"""The command's first act begins the import of torch: what it may not change, and may not leave behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dist_train import env
from dist_train.cli.run.bundled_example import bundled_example
from dist_train.rundir import RunDir
from dist_train.rundir.events import read_events
from dist_train.testing import CliResult, launch_cli

pytestmark = pytest.mark.multiprocess
COMMAND = [sys.executable, "-P", "-m", "dist_train.cli.main"]
# Every interpreter says how it was started; an agent that begins early may be told what to do.
SITE = """
import os, sys
with open(os.environ["STARTED"], "a") as file:
    file.write(" ".join(sys.orig_argv[1:]) + "\\n")
if "--prewarm" in sys.orig_argv and os.environ.get("FAILING"):
    sys.modules["torch"] = None
"""


@pytest.fixture
def recorded(tmp_path: Path) -> dict[str, str]:
    """An environment in which each new interpreter writes its arguments into tmp_path/started."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SITE)
    return {"PYTHONPATH": str(tmp_path / "site"), "STARTED": str(tmp_path / "started")}


def prewarms(folder: Path) -> list[str]:
    return [line for line in (folder / "started").read_text().splitlines() if "--prewarm" in line]


def prewarmed_of(command: int) -> list[int]:
    """The processes that import torch for this command, by the title that they have."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if f"import for pid={command}".encode() in words or f"\0{command}\0".encode() in words:
            found.append(int(entry.name))
    return found


def wait_until(is_so: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline, f"not within {within_s:g} s"
        time.sleep(0.01)


def begin_at_fifo(folder: Path, environ: dict[str, str]) -> subprocess.Popen[bytes]:
    """A launch that waits in its planning: its config is a pipe into which nobody writes."""
    if not (folder / "train.yaml").exists():
        os.mkfifo(folder / "train.yaml")
    with (folder / "out.txt").open("wb") as out:
        command = subprocess.Popen(
            [*COMMAND, "launch", "--device", "cpu", "--run-dir", "run", "train.yaml", "trainer.epochs=1"],
            cwd=folder,
            env={**os.environ, **environ},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    # Its import has begun, and the process has asked to end with its parent.
    wait_until(lambda: bool(title_of(command.pid)), 30)
    return command


def title_of(command: int) -> list[int]:
    return [
        pid for pid in prewarmed_of(command) if b"import for" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


REFUSED = {
    "a config that is not there": (["launch", "--device", "cpu", "absent.yaml"], 66),
    "a wrong config": (["launch", "--device", "cpu", "wrong.yaml"], 78),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_launch_says_the_same_and_leaves_no_process(
    case: str, tmp_path: Path, recorded: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "wrong.yaml").write_text("no_such_key: 1\n")
    words, code = REFUSED[case]
    said = {}
    for method in ("auto", "fork"):
        result = launch_cli(words, tmp_path, {**recorded, env.START_METHOD: method}, timeout_s=60)
        said[method] = (result.code, result.stdout, result.stderr)
        left = [line.split()[-2] for line in prewarms(tmp_path)]
        assert not [pid for parent in left for pid in prewarmed_of(int(parent))]
        assert not (tmp_path / "runs").exists()
    assert said["auto"] == said["fork"]
    assert said["auto"][0] == code
    assert len(prewarms(tmp_path)) <= 1, "with `fork` nothing begins early"


def test_the_import_begins_before_a_config_is_refused(tmp_path: Path, recorded: dict[str, str]) -> None:
    command = begin_at_fifo(tmp_path, recorded)
    assert len(prewarms(tmp_path)) == 1
    (tmp_path / "train.yaml").write_text("no_such_key: 1\n")  # opens the pipe, and writes
    assert command.wait(30) == 78, (tmp_path / "out.txt").read_text()
    assert not prewarmed_of(command.pid)
    assert "no_such_key" in (tmp_path / "out.txt").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_ends_while_it_plans_leaves_no_process(
    number: int, tmp_path: Path, recorded: dict[str, str]
) -> None:
    command = begin_at_fifo(tmp_path, recorded)
    command.send_signal(number)
    code = command.wait(30)
    assert code == (130 if number == signal.SIGINT else -number)
    wait_until(lambda: not prewarmed_of(command.pid), 5)
    if number == signal.SIGINT:
        assert (tmp_path / "out.txt").read_text().strip() == ""


@pytest.mark.parametrize(
    "words",
    [["launch", "--help"], ["launch", "--dry-run", "train.py"], ["--help"], ["launch", "-h", "train.py"]],
)
def test_help_and_dry_run_start_no_other_interpreter(
    words: list[str], tmp_path: Path, recorded: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    assert launch_cli(words, tmp_path, recorded).code == 0
    assert len((tmp_path / "started").read_text().splitlines()) == 1


SCRIPT = """
import hashlib, json, os, sys
from pathlib import Path
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(3)
model = DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    model(torch.randn(16, 8)).square().sum().backward()
    optimizer.step()
rank, agent = dist.get_rank(), os.getppid()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
print(rank, digest)
shown = dict(entry.split("=", 1) for entry in
             Path(f"/proc/{agent}/environ").read_bytes().decode().split("\\0") if entry)
stat = Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()
facts = {
    "agent": agent,
    "parent": int(stat[1]),
    "is_leader": os.getsid(agent) == agent,
    "shown": {name: shown.get(name) for name in sys.argv[1:]},
    "room": "DIST_TRAIN_PREWARM_PADDING" in shown or "DIST_TRAIN_PREWARM_PADDING" in os.environ,
    "area": int(stat[48]) - int(stat[47]),
    "descriptors": sorted(int(name) for name in os.listdir(f"/proc/{agent}/fd"))[:3],
    "title": Path(f"/proc/{agent}/cmdline").read_bytes().rstrip(b"\\0").decode(),
}
Path(f"rank{rank}.json").write_text(json.dumps(facts))
dist.destroy_process_group()
"""
VARIABLES = (env.RUN_ID, env.NODE_RANK, env.LAUNCHER)


def run(folder: Path, environ: dict[str, str], *options: str) -> CliResult:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(SCRIPT)
    words = ["launch", "--device", "cpu", "--nproc-per-node", "2", "--show-ranks", "all", *options]
    words += ["--run-id", f"r-{folder.name}", "--run-dir", str(folder / "run"), "train.py", *VARIABLES]
    result = launch_cli(words, folder, environ, timeout_s=120)
    assert result.code == 0, result
    return result


def records(folder: Path) -> dict[str, object]:
    """What a run leaves, less times, pids and its own names."""
    plan = (folder / "run" / "plan" / "agents.json").read_text()
    kinds = [event["kind"] for event in read_events(RunDir(folder / "run"))]
    files = sorted(path.relative_to(folder / "run").as_posix() for path in (folder / "run").rglob("*"))
    fingerprint = json.loads((folder / "run" / "attempts" / "0" / "fingerprint.json").read_text())
    del fingerprint["time"], fingerprint["target"]
    return {
        "plan": re.sub(rf"\\b{folder.name}\\b", "NAME", plan).replace(str(folder), "FOLDER"),
        "kinds": kinds,
        "files": files,
        "fingerprint": fingerprint,
    }


@pytest.mark.proof
def test_a_run_is_the_same_with_and_without_it(tmp_path: Path) -> None:
    said, left = {}, {}
    for method in ("auto", "fork"):
        result = run(tmp_path / method, {env.START_METHOD: method})
        said[method] = [
            sorted(line.replace(method, "NAME") for line in text.splitlines())
            for text in (result.stdout, result.stderr)
        ]
        left[method] = records(tmp_path / method)
        left[method]["plan"] = str(left[method]["plan"]).replace(f"r-{method}", "NAME")
        facts = json.loads((tmp_path / method / "rank0.json").read_text())
        assert (facts["area"] > 8192) == (method == "auto"), (
            "the agent is not the process that was begun early"
        )
        assert facts["shown"] == {env.RUN_ID: f"r-{method}", env.NODE_RANK: "0", env.LAUNCHER: "local"}
        assert facts["is_leader"]
        assert not facts["room"]
        assert facts["title"] == f"dist-train agent node=0 run={tmp_path / method / 'run'}"
    assert said["auto"] == said["fork"]
    assert left["auto"] == left["fork"]


@pytest.mark.proof
def test_agents_of_other_nodes_are_forks_of_the_same_process(
    tmp_path: Path, recorded: dict[str, str]
) -> None:
    run(tmp_path / "two", recorded, "--nodes", "2")
    found = [json.loads((tmp_path / "two" / f"rank{rank}.json").read_text()) for rank in range(4)]
    assert [each["shown"][env.NODE_RANK] for each in found] == ["0", "0", "1", "1"]
    assert len({each["agent"] for each in found}) == 2
    assert len({each["parent"] for each in found}) == 1, "both are children of the command"
    assert all(each["area"] > 8192 and each["is_leader"] for each in found)
    # The command, and the process that has imported torch for both nodes and their ranks.
    assert len((tmp_path / "started").read_text().splitlines()) == 2


@pytest.mark.proof
@pytest.mark.parametrize("failing", ["killed", "import"])
def test_where_the_early_import_fails_the_agent_starts_as_without_it(
    failing: str, tmp_path: Path, recorded: dict[str, str]
) -> None:
    if failing == "import":
        run(tmp_path / "run1", {**recorded, "FAILING": "1"})
        assert len(prewarms(tmp_path)) == 1
        return
    command = begin_at_fifo(tmp_path, recorded)
    for pid in title_of(command.pid):
        os.kill(pid, signal.SIGKILL)
    (tmp_path / "train.yaml").write_text(bundled_example().read_text())
    assert command.wait(100) == 0, (tmp_path / "out.txt").read_text()
    started = (tmp_path / "started").read_text()
    assert len(re.findall("-m dist_train.agent --device", started)) == 1, started


@pytest.mark.proof
@pytest.mark.parametrize("method", ["auto", "fork"])
def test_a_low_soft_limit_of_open_files_is_raised(method: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    words = ["launch", "--device", "cpu", "--nodes", "2", "--show-ranks", "all", "train.py"]
    result = subprocess.run(
        ["sh", "-c", 'ulimit -S -n 256; exec "$@"', "sh", *COMMAND, *words],
        cwd=tmp_path,
        env={**os.environ, env.START_METHOD: method},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result
    assert [line.split()[-1] for line in result.stdout.splitlines()] == ["256", "256"]


FAILS_FIRST = """
import os, sys, torch
print("threads", torch.get_num_threads(), "agent", os.getppid(), flush=True)
sys.exit(0 if os.path.exists("flag") else 3)
"""


@pytest.mark.proof
@pytest.mark.parametrize("method", ["auto", "fork"])
def test_a_resume_begins_the_import_by_the_record_of_the_run(
    method: str, tmp_path: Path, recorded: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(FAILS_FIRST)
    environ = {**recorded, env.START_METHOD: method, "OMP_NUM_THREADS": "2"}
    words = ["launch", "--device", "cpu", "--name", "a", "train.py"]
    assert launch_cli(words, tmp_path, environ, timeout_s=120).code == 3
    (tmp_path / "flag").touch()
    (tmp_path / "started").unlink()
    resumed = launch_cli(["resume", "a", "--nodes", "1"], tmp_path, environ, timeout_s=120)
    assert resumed.code == 0, resumed
    assert "threads 2 " in resumed.stdout
    began = prewarms(tmp_path)
    assert len(began) == (method == "auto"), began
    # The process that has imported torch became the agent: no other one was started.
    agents = [line for line in (tmp_path / "started").read_text().splitlines() if "dist_train.agent" in line]
    assert len(agents) == 1, agents
