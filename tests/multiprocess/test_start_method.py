"""A rank that is forked from the warm parent is what a spawned one is."""

from __future__ import annotations

import json
import re
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from warm_commands.warm_launch import launch_cli

from dist_train import env
from dist_train.rundir import RunDir
from dist_train.testing import CliResult

PROBE = Path(__file__).with_name("start_method_probe.py")
METHODS = ("auto", "spawn")
# Variables that no two runs share.
OF_A_RUN = {
    "DIST_TRAIN_RDZV",
    "DIST_TRAIN_RUN_ID",
    "DIST_TRAIN_STORE_PREFIX",
    "DIST_TRAIN_TESTING_COMMAND",
    "MASTER_PORT",
    "PWD",
    "TORCHELASTIC_RUN_ID",
    env.START_METHOD,
}


def launch(folder: Path, method: str, *args: str, code: int = 0, ranks: int = 2, **changes: str) -> CliResult:
    folder.mkdir(exist_ok=True)
    words = [
        "launch",
        "--nproc-per-node",
        str(ranks),
        "--device",
        "cpu",
        "--run-dir",
        str(folder / "run"),
        *args,
    ]
    result = launch_cli(words, folder, {env.START_METHOD: method, **changes}, timeout_s=120)
    assert result.code == code, result
    return result


def agent_log(folder: Path) -> str:
    return (RunDir(folder / "run").logs / "node-0.log").read_text()


def facts(folder: Path, rank: int) -> Any:
    return json.loads((folder / f"rank{rank}.json").read_text())


@pytest.mark.multiprocess
def test_a_forked_rank_is_what_a_spawned_one_is(tmp_path: Path) -> None:
    shown = {}
    # Short: multiprocessing's sockets are in it, and their path has a limit of 107 bytes.
    with tempfile.TemporaryDirectory(dir="/tmp") as temporary:
        for method in METHODS:
            folder = tmp_path / method
            result = launch(folder, method, str(PROBE), str(folder), "--x", TMPDIR=temporary)
            shown[method] = [line for line in result.stdout.splitlines() if "exit function" in line]
    assert shown["auto"] == shown["spawn"] == ["no newlineexit function"]
    for rank in range(2):
        forked, spawned = facts(tmp_path / "auto", rank), facts(tmp_path / "spawn", rank)
        assert (forked["forked"], spawned["forked"]) == (True, False)
        for name, value in spawned["equal"].items():
            got = json.loads(json.dumps(forked["equal"][name]).replace("/auto", "/spawn"))
            if name == "environ":
                got, value = (
                    {key: each for key, each in of.items() if key not in OF_A_RUN} for of in (got, value)
                )
            assert got == value, (rank, name)
        assert forked["descriptors"] == spawned["descriptors"]
        assert forked["title"] == spawned["title"]
    seeds = [facts(tmp_path / "auto", rank)["seeds"] for rank in range(2)]
    assert all(seeds[0][name] != seeds[1][name] for name in seeds[0])


@pytest.mark.multiprocess
def test_proc_environ_shows_the_rank_of_a_forked_one(tmp_path: Path) -> None:
    launch(tmp_path, "auto", str(PROBE), str(tmp_path), FILLER="x" * 4000)
    for rank in range(2):
        found = facts(tmp_path, rank)
        assert found["shown"].items() <= found["real"].items()
        assert found["shown"]["RANK"] == str(rank)
        assert {"LOCAL_RANK", env.RUN_ID, env.NODE_RANK, env.ATTEMPT} <= found["shown"].keys()


def processes_of(run_id_part: str) -> list[int]:
    """The pids of this run's processes, by /proc/PID/environ."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if (
                entry.name.isdigit()
                and f"{env.RUN_DIR}={run_id_part}".encode() in (entry / "environ").read_bytes()
            ):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


SIGNALS_WARM_PARENT = """
import os, signal, sys, time
from pathlib import Path
print("forked", "dist_train.agent.warm_parent.server" in sys.modules, flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.environ["RANK"] == "0":
        agent = os.getppid()
        children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
        warm = min(int(each) for each in children)
        assert Path(f"/proc/{warm}/stat").read_text().rpartition(")")[2].split()[3] != str(warm)
        os.kill(warm, int(sys.argv[1]))
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("number", "why"),
    [(signal.SIGKILL, "(has ended|does not answer)"), (signal.SIGSTOP, "no answer in 10 s")],
)
def test_a_warm_parent_that_cannot_fork_costs_an_import_and_no_more(
    tmp_path: Path, number: int, why: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SIGNALS_WARM_PARENT)
    result = launch(tmp_path, "auto", str(script), str(int(number)))
    forked = [line for line in result.stdout.splitlines() if "forked" in line]
    assert forked == ["forked True", "forked False"]
    assert len(re.findall(f"each rank imports torch by itself: .*{why}", result.stderr)) == 1, result


@pytest.mark.multiprocess
def test_an_exception_of_a_forked_rank_is_reported_as_a_spawned_one_s(tmp_path: Path) -> None:
    reports = {}
    for method in METHODS:
        folder = tmp_path / method
        # One rank: the first of several to fail may end the others before they have failed too.
        result = launch(folder, method, str(PROBE), str(folder), "fail", code=1, ranks=1)
        record = json.loads((folder / "run" / "attempts" / "0" / "error-rank-0.json").read_text())
        said = [line.replace(str(folder), "") for line in result.stderr.splitlines() if "[rank" in line]
        reports[method] = ({name: record[name] for name in ("text", "exception", "line", "traceback")}, said)
    assert reports["auto"] == reports["spawn"]


AGENT_KILL = """
import os, signal, time
from pathlib import Path
if os.environ["RANK"] == "1":
    time.sleep(1.0)
    os.kill(os.getppid(), signal.SIGKILL)
time.sleep(60)
"""


@pytest.mark.multiprocess
def test_nothing_outlives_a_killed_agent(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(AGENT_KILL)
    launch(tmp_path, "auto", "--max-restarts", "0", str(script), code=69)
    deadline = time.monotonic() + 5.0
    while left := processes_of(str(tmp_path / "run")):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


LATE = """
import os, sys
import late_settings
print("forked", "dist_train.agent.warm_parent.server" in sys.modules)
__builtins__.print
os.environ["NOT_READ"] = "1"
"""


@pytest.mark.multiprocess
def test_a_module_that_sets_what_torch_has_read_already_is_named(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LATE)
    (tmp_path / "late_settings.py").write_text("import os\nos.environ['OMP_NUM_THREADS'] = '7'\n")
    result = launch(tmp_path, "auto", str(script))
    assert "forked True" in result.stdout
    assert result.stderr.count("OMP_NUM_THREADS is set after torch was imported") == 1, result
    assert "NOT_READ" not in result.stderr
