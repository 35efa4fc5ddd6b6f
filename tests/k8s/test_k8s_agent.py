"""Agents as pods start them, real processes: run directory, takeover, termination messages."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from warm_commands.forked_command import ForkedCommand
from warm_commands.warm_launch import start_agent

from dist_train import env
from dist_train.rundir import RunDir
from dist_train.rundir.events import read_events
from dist_train.testing.plugin import require

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(180)]
DEADLINE_S = 60.0
PRINT_RANK = "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], 'is here')\n"
UNSHARE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


@dataclass
class Pod:
    """One agent, and its output."""

    process: subprocess.Popen[bytes] | ForkedCommand
    console: Path
    termination_log: Path

    @property
    def said(self) -> str:
        return self.console.read_text(errors="replace")

    @property
    def message(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.termination_log.read_bytes())
        return found

    def ends(self, within_s: float = DEADLINE_S) -> int:
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the agent has not ended in {within_s:g} s: {self.said}")

    def says(self, words: str, within_s: float = DEADLINE_S) -> None:
        self.until(lambda: words in self.said, f"{words!r} was not said", within_s)

    def until(self, ready: Callable[[], bool], what: str, within_s: float = DEADLINE_S) -> None:
        deadline = time.monotonic() + within_s
        while not ready():
            assert time.monotonic() < deadline, f"{what} in {within_s:g} s: {self.said}"
            assert self.process.poll() is None or ready(), f"{what}, and it has ended: {self.said}"
            time.sleep(0.05)


@dataclass
class Gang:
    """Starts pods of one job on this machine; those left are killed at the end of the test."""

    folder: Path
    stack: ExitStack
    nodes: int = 2
    submission: str = "submission-1"
    port: int = 0
    pods: list[Pod] = field(default_factory=list)
    # Each gang's own: an agent ends what its run has left on the machine, which it finds by this.
    run_id: str = field(default_factory=lambda: f"train-{secrets.token_hex(3)}")

    @property
    def run(self) -> RunDir:
        return RunDir(self.folder / "volume" / "train")

    def start(self, node: int, script: Path, *prefix: str, join_s: float = 60) -> Pod:
        """The next pod of this index."""
        number = len(self.pods)
        log = self.folder / f"termination-{number}"
        environ = {
            **os.environ,
            env.RUN_ID: self.run_id,
            env.RUN_DIR: str(self.run.path),
            env.LAUNCHER: "kubernetes",
            env.NNODES: str(self.nodes),
            env.NPROC_PER_NODE: "1",
            env.RDZV: f"tcp://127.0.0.1:{self.port}",
            env.JOB: "train.0",
            env.JOIN_TIMEOUT_S: str(join_s),
            env.SUBMISSION: self.submission,
            env.POD_UID: f"uid-{number}",
            env.POD_NAME: f"train-{node}-x{number}",
            env.POD_NODE: f"worker-{node}",
            env.TERMINATION_LOG: str(log),
            "JOB_COMPLETION_INDEX": str(node),
        }
        argv = [*prefix, sys.executable, "-P", "-m", "dist_train.agent", "script", str(script)]
        console = self.folder / f"console-{number}"
        with console.open("wb") as out:
            process = start_agent(argv, environ, out) or subprocess.Popen(
                argv, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        self.pods.append(Pod(process, console, log))
        return self.pods[-1]

    def events(self, kind: str) -> list[dict[str, Any]]:
        return list(read_events(self.run, kind))  # type: ignore[arg-type]


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Gang]:
    (tmp_path / "volume").mkdir()
    with ExitStack() as stack:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        yield Gang(tmp_path, stack, port=port)


def script(gang: Gang, text: str) -> Path:
    path = gang.folder / "train.py"
    path.write_text(textwrap.dedent(text))
    return path


def test_two_pods_make_the_run_directory_and_train(gang: Gang) -> None:
    target = script(gang, PRINT_RANK)
    second = gang.start(1, target)
    second.says("waits for node 0 to make")
    first = gang.start(0, target)
    assert (first.ends(), second.ends()) == (0, 0)
    assert "rank 0 of 2 is here" in first.said
    assert stat.S_IMODE(gang.run.path.stat().st_mode) == 0o700
    assert stat.S_IMODE((gang.run.control / "key").stat().st_mode) == 0o600
    for node, pod in enumerate((first, second)):
        message = pod.message
        assert (message["node"], message["code"], message["attempt"], message["failure"]) == (
            node,
            0,
            0,
            None,
        )
    (started,) = gang.events("attempt_started")
    assert [node[env.POD_NODE] for node in started["nodes"]] == ["worker-0", "worker-1"]
    assert [node["JOB_COMPLETION_INDEX"] for node in started["nodes"]] == ["0", "1"]
    late = gang.start(1, target)  # evicted after its work was done
    assert late.ends() == 0
    assert "the run has ended already" in late.message["why"]


@pytest.mark.parametrize(("own", "leaves_with"), [(41, 41), (77, 1)])
def test_a_ranks_own_exit_code_is_reported_and_final_for_this_submission(
    gang: Gang, own: int, leaves_with: int
) -> None:
    gang.nodes = 1
    failing = script(gang, f"import sys\nprint('so it ends', file=sys.stderr)\nsys.exit({own})\n")
    pod = gang.start(0, failing)
    assert pod.ends() == leaves_with
    message = pod.message
    assert (message["code"], message["failure"]["rank"], message["failure"]["exit_code"]) == (own, 0, own)
    assert message["failure"]["log_tail"] == ["so it ends"]
    again = gang.start(0, failing)
    assert again.ends() == 76, "Kubernetes starts no other"
    assert (again.message["code"], again.message["failure"]["exit_code"]) == (own, own)
    assert len(gang.events("attempt_started")) == 1
    gang.submission = "submission-2"
    resumed = gang.start(0, script(gang, PRINT_RANK))
    assert resumed.ends() == 78, "the script has changed"
    assert "--accept-code-change" in resumed.message["failure"]["message"]
    assert [event["submission"] for event in gang.events("submitted")] == ["submission-1", "submission-2"]


WAITS = """
    import os, pathlib, time
    flag = pathlib.Path(os.environ["DIST_TRAIN_RUN_DIR"]) / "go"
    while not flag.exists():
        time.sleep(0.05)
"""


@pytest.mark.proof
def test_a_killed_pod_0_is_followed_by_another_and_its_peer_may_come_first(gang: Gang) -> None:
    waits = script(gang, WAITS)
    first, second = gang.start(0, waits), gang.start(1, waits)
    first.until(lambda: len(list(gang.run.logs.glob("*/rank-*.log"))) == 2, "the ranks have not started")
    first.process.kill()
    assert second.ends(15) == 79
    assert (second.message["code"], second.message["failure"]) == (79, None)
    old = time.time() - 28
    os.utime(gang.run.lease, (old, old))  # as if the Job controller had taken 28 s
    (gang.run.path / "go").touch()
    early = gang.start(1, waits)
    early.says("Connection refused")
    new = gang.start(0, waits)
    assert (new.ends(), early.ends()) == (0, 0)
    assert [event["why"] for event in gang.events("restarted")] == ["a node or its agent was lost"]
    assert new.message["attempt"] == 1


@pytest.mark.proof
def test_a_pod_0_that_is_stopped_while_the_pods_gather_is_waited_for(gang: Gang) -> None:
    gang.nodes = 3
    target = script(gang, PRINT_RANK)
    first, second = gang.start(0, target), gang.start(1, target)
    second.until(lambda: is_connected(second, gang.port), "node 1 has not come")
    time.sleep(0.5)  # its handshake and its Join
    first.process.send_signal(signal.SIGTERM)
    assert first.ends() == 75
    assert first.message["why"] == "stopped before an attempt had begun"
    second.says("waiting for the next")
    new, third = gang.start(0, target), gang.start(2, target)
    assert [pod.ends() for pod in (new, second, third)] == [0, 0, 0]
    assert len(gang.events("attempt_started")) == 1
    assert gang.events("preempted") == []


@pytest.mark.proves(
    "A pod killed at a random moment of its first 4 s is followed by another, and the run ends",
    limits="the agents as processes; no API server",
)
@pytest.mark.proof
@pytest.mark.parametrize("number", range(4))
def test_a_pod_killed_in_the_first_seconds_is_followed_by_another(gang: Gang, number: int) -> None:
    target, node = script(gang, "import time\ntime.sleep(4)\n"), number % 2
    pods = [gang.start(0, target), gang.start(1, target)]
    time.sleep(random.Random(number).uniform(0.0, 4.0))
    assert all(pod.process.poll() is None for pod in pods)
    pods[node].process.kill()
    pods[node].process.wait()
    if node == 0 and gang.run.lease.exists():
        old = time.time() - 28
        os.utime(gang.run.lease, (old, old))  # as if the Job controller had taken 28 s
    pods[node] = gang.start(node, target)
    deadline = time.monotonic() + DEADLINE_S
    while any(pod.process.poll() != 0 for pod in pods):
        for index, pod in enumerate(pods):
            if pod.process.poll() in (69, 79, 137):  # the Job controller starts another
                pods[index] = gang.start(index, target)
        assert time.monotonic() < deadline, [pod.said for pod in pods]
        time.sleep(0.1)


def is_connected(pod: Pod, port: int) -> bool:
    """Whether this agent has a connection to node 0's port."""
    found = psutil.Process(pod.process.pid).net_connections(kind="tcp")
    return any(c.raddr and c.raddr.port == port and c.status == psutil.CONN_ESTABLISHED for c in found)


@pytest.mark.proof
def test_an_unreachable_pod_0_is_superseded_by_the_next(gang: Gang) -> None:
    gang.nodes = 1
    waits = script(gang, WAITS)
    lost = gang.start(0, waits)
    lost.until(lambda: bool(list(gang.run.logs.glob("*/rank-*.log"))), "the rank has not started")
    new = gang.start(0, waits)
    assert lost.ends() == 79
    assert "later start uid-1 has taken the run over" in lost.message["why"]
    (gang.run.path / "go").touch()
    assert new.ends() == 0
    assert new.message["attempt"] == 1


PREEMPTED = """
    import os
    from dist_train.errors import Preempted
    if os.environ["DIST_TRAIN_ATTEMPT"] == "0":
        raise Preempted("stopped at step 57 as asked; a save was not possible, last good checkpoint: step 50")
"""


def test_a_preempted_pods_message_has_the_saved_step_and_the_next_pod_continues(gang: Gang) -> None:
    gang.nodes = 1
    preempted = script(gang, PREEMPTED)
    pod = gang.start(0, preempted)
    assert pod.ends() == 75
    assert "a save was not possible, last good checkpoint: step 50" in pod.message["why"]
    assert pod.message["failure"] is None
    again = gang.start(0, preempted)
    assert again.ends() == 0
    assert (again.message["attempt"], len(gang.events("restarted"))) == (1, 0)


ORPHANS = """
    import subprocess, time
    for _ in range(3):
        subprocess.run(["sh", "-c", "setsid sleep 0.2 & sleep 0.1 &"])
    while True:
        time.sleep(0.1)
"""


def test_as_pid_1_an_agent_reaps_orphans_and_handles_sigterm(gang: Gang) -> None:
    if os.geteuid() != 0:
        require("k8s", "a pid namespace needs root")
    gang.nodes = 1
    pod = gang.start(0, script(gang, ORPHANS), *UNSHARE)
    log = gang.run.logs / "node-0.log"
    pod.until(lambda: log.exists() and log.read_text().count("reaped the orphan") == 6, "6 orphans")
    (agent,) = psutil.Process(pod.process.pid).children()
    states = [child.status() for child in agent.children(recursive=True)]
    assert states
    assert psutil.STATUS_ZOMBIE not in states
    agent.send_signal(signal.SIGTERM)
    assert pod.ends(20) == 143, "the script does not take part in saving"
    assert pod.message["code"] == 143


def test_as_pid_1_a_waiting_agent_handles_sigterm(gang: Gang) -> None:
    if os.geteuid() != 0:
        require("k8s", "a pid namespace needs root")
    pod = gang.start(1, script(gang, PRINT_RANK), *UNSHARE)
    pod.says("waits for node 0 to make")
    (agent,) = psutil.Process(pod.process.pid).children()
    agent.send_signal(signal.SIGTERM)
    assert pod.ends(10) == 75
    assert (pod.message["code"], pod.message["failure"]) == (75, None)


def test_a_manifest_without_what_an_agent_needs_is_reported_with_78(
    gang: Gang, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang.port = -1
    pod = gang.start(0, script(gang, PRINT_RANK))
    assert pod.ends() == 78
    message = pod.message
    assert (message["run_id"], message["node"], message["attempt"]) == (gang.run_id, 0, None)
    assert "is neither tcp://host:port" in message["failure"]["message"]
