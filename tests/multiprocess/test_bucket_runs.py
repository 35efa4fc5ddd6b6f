"""Runs whose checkpoints are in a bucket: an S3 server on loopback which stores them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bucket_server import BUCKET, SECRET, BucketServer, bucket_server
from conftest import WORKLOADS, Finished, begin, nothing_left, start, wait_for_step
from warm_commands.warm_launch import launch_cli

from dist_train import env
from dist_train.config import dump_config, load_config
from dist_train.jobs.orphans import find_processes
from dist_train.rundir import RunDir
from dist_train.rundir.committed_steps import committed_steps
from dist_train.rundir.result import read_result

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]
DIRECTORY = f"checkpoint.directory=s3://{BUCKET}/runs/{{run}}"
CONFIG = str(WORKLOADS / "digits.yaml")
SHORT = ("trainer.steps=12", "checkpoint.every_steps=3")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    with bucket_server(tmp_path / "buckets", monkeypatch) as found:
        yield found


def whole_output(finished: Finished) -> str:
    return finished.cli.stdout + finished.cli.stderr


@pytest.mark.proves(
    "A run whose checkpoints are in a bucket resumes from it with the same bits after `kill -9`",
    limits="S3 alone, on loopback",
)
@pytest.mark.proof
def test_a_killed_run_goes_on_from_the_bucket(tmp_path: Path, server: BucketServer) -> None:
    base = start(tmp_path, "base", "--gpus-per-node", 2, CONFIG, *SHORT)
    assert base.cli.code == 0, base.cli
    words = ("--gpus-per-node", 2, CONFIG, *SHORT, DIRECTORY)
    run = RunDir(tmp_path / "runs" / "killed")
    command = begin(tmp_path, "killed", *words)
    try:
        wait_for_step(run, 3)
    finally:
        command.send_signal(signal.SIGSTOP)  # it would ask its agents to save and stop
        run_id = json.loads(run.job.read_text())["spec"]["run_id"]
        for pid in find_processes(run_id):
            os.kill(pid, signal.SIGKILL)
        command.send_signal(signal.SIGKILL)
        command.wait()
    assert nothing_left(run_id)
    assert [path.name for path in run.checkpoints.iterdir()] == ["remote.json"]

    resumed = launch_cli(["resume", "killed"], cwd=tmp_path, timeout_s=100)
    assert resumed.code == 0, resumed
    assert "goes on from step" in resumed.stdout + resumed.stderr
    assert Finished(resumed, run).hashes == base.hashes

    look(tmp_path, server, run)


def look(folder: Path, server: BucketServer, run: RunDir) -> None:
    """Every verb finds them, by the run's name and by the URL."""
    url = f"s3://{BUCKET}/runs/killed"
    steps = committed_steps(run)
    assert steps == [6, 9, 12]

    def printed(*words: str, code: int = 0) -> str:
        done = launch_cli(["checkpoint", *words], cwd=folder, timeout_s=60)
        assert done.code == code, done
        assert SECRET not in done.stdout + done.stderr
        return done.stdout + done.stderr

    for source in ("killed", url):
        found = json.loads(printed("list", source, "--json"))
        assert found["directory"] == url
        assert [one["step"] for one in found["checkpoints"]] == steps
    assert printed("verify", url).count("whole") == 3
    assert f"{url}/step-00000009" in printed("show", "killed", "--step", "9")
    exported = printed("export", "killed", "--out", "model.safetensors")
    assert "read back and equal" in exported
    assert printed("copy", "killed", "copied").count("copied, read back and equal") == 3
    assert printed("copy", "killed", "copied").count("was there, and is equal") == 3
    assert printed("verify", "copied").count("whole") == 3
    assert "there is no such bucket" in printed("list", "s3://nothing/runs", code=69)
    assert "there is no checkpoint" in printed("verify", f"s3://{BUCKET}/none", code=66)
    status = launch_cli(["status", "killed"], cwd=folder, timeout_s=60)
    assert "step 12, " in status.stdout, status
    records = [p for p in run.path.rglob("*") if p.is_file()]
    assert not [p for p in records if SECRET.encode() in p.read_bytes()], "a credential in a record"


def test_no_bucket_is_said_and_not_tried_again(tmp_path: Path, server: BucketServer) -> None:
    words = ("checkpoint.directory=s3://nothing/runs", *SHORT)
    finished = start(tmp_path, "none", "--gpus-per-node", 2, CONFIG, *words)
    assert finished.cli.code == 78, finished.cli
    assert "there is no such bucket" in whole_output(finished)
    assert "create the bucket" in whole_output(finished)


def id_of(folder: Path) -> str:
    """The run's id: of this test alone, since agents end what else has theirs."""
    return f"apart-{os.getpid()}-{folder.name}"


def node(folder: Path, number: int, port: int, key: str) -> subprocess.Popen[bytes]:
    """Start one node's agent as a launcher does; its run directory is its own."""
    run = RunDir(folder / f"node{number}" / "apart")
    run.create()
    config = load_config(Path(CONFIG), overrides=[*SHORT, DIRECTORY]).config
    run.config.write_text(dump_config(config))
    environ = {
        **os.environ,
        env.RUN_ID: id_of(folder),
        env.RUN_DIR: str(run.path),
        env.LAUNCHER: "hand",
        env.NNODES: "2",
        env.NPROC_PER_NODE: "1",
        env.NODE_RANK: str(number),
        env.RDZV: f"tcp://127.0.0.1:{port}",
        env.RUN_KEY: key,
    }
    with (folder / f"node{number}.txt").open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-Pm", "dist_train.agent", f"--folder={WORKLOADS}", "config", str(run.config)],
            env=environ,
            stdout=out,
            stderr=out,
        )


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def wait_all(agents: list[subprocess.Popen[bytes]]) -> list[int]:
    try:
        return [agent.wait(100) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()


@pytest.mark.proves(
    "Two nodes without a common directory train, and resume from the bucket with the same bits, also where "
    "node 0 comes back with an empty disk",
    limits="two nodes on one machine, each with a run directory of its own",
)
@pytest.mark.proof
def test_two_nodes_without_a_common_directory(tmp_path: Path, server: BucketServer) -> None:
    base = start(tmp_path, "base", "--nodes", 2, "--gpus-per-node", 1, CONFIG, *SHORT)
    assert base.cli.code == 0, base.cli
    port = free_port()
    agents = [node(tmp_path, number, port, "key-of-the-run") for number in range(2)]
    first = RunDir(tmp_path / "node0" / "apart")
    try:
        wait_for_step(first, 6)
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
    assert nothing_left(id_of(tmp_path))
    # Node 0 is another machine now.
    first.path.rename(tmp_path / "lost")
    codes = wait_all([node(tmp_path, number, port, "key-of-the-run") for number in range(2)])
    said = "".join((tmp_path / f"node{number}.txt").read_text() for number in range(2))
    assert codes == [0, 0], said
    result = read_result(first)
    assert result is not None
    assert (result.weights_hash, result.state_hash) == base.hashes[:2]
    assert committed_steps(first) == [6, 9, 12]
    second = RunDir(tmp_path / "node1" / "apart")
    assert not second.result.exists()
    assert committed_steps(second) == []


@pytest.mark.proof
def test_agents_with_another_key_do_not_join(tmp_path: Path, server: BucketServer) -> None:
    port = free_port()
    agents = [node(tmp_path, number, port, f"key-{number}") for number in range(2)]
    try:
        code = agents[1].wait(60)
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
    said = (tmp_path / "node1.txt").read_text()
    assert code != 0, said
    assert "key" in said, (code, (tmp_path / "node0.txt").read_text())
