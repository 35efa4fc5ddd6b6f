"""The run directory of pods: agent 0 creates it, the others wait; a wrong one is refused with a reason."""

from __future__ import annotations

import os
import signal
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dist_train import env
from dist_train.agent.command_line import read_settings
from dist_train.agent.platform import pod_run_dir
from dist_train.agent.platform.pod_run_dir import prepare_run_dir
from dist_train.agent.records.run_dir_nonce import read_nonce, write_nonce
from dist_train.agent.settings import Settings
from dist_train.errors import ConfigError, Preempted, RendezvousError


def settings_of(run_dir: Path, node: int = 0, config: Path | None = None) -> Settings:
    environ = {
        env.RUN_DIR: str(run_dir),
        env.RUN_ID: "r",
        env.LAUNCHER: "kubernetes",
        env.NNODES: "2",
        env.NPROC_PER_NODE: "1",
        env.RDZV: "tcp://train-0.train:29400",
        "JOB_COMPLETION_INDEX": str(node),
    }
    return read_settings(["script", "x"] if config is None else ["config", str(config)], environ)


def prepare(agent: Settings, within_s: float = 5.0, notes: list[str] | None = None) -> None:
    prepare_run_dir(agent, time.monotonic() + within_s, (notes if notes is not None else []).append)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "train"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text("name: train\n")
    return path


def test_node_0_creates_all_of_it_for_its_own_user_only(run_dir: Path, config: Path) -> None:
    agent = settings_of(run_dir, config=config)
    prepare(agent)
    folders = [agent.run.path, agent.run.control, agent.run.logs, agent.run.attempts, agent.run.checkpoints]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in folders] == [0o700] * 5
    key = agent.run.control / "key"
    assert (len(key.read_bytes()), stat.S_IMODE(key.stat().st_mode)) == (32, 0o600)
    assert agent.run.config.read_text() == "name: train\n"


def test_the_next_pod_finds_the_same_key_and_config(run_dir: Path, config: Path) -> None:
    prepare(settings_of(run_dir, config=config))
    before = (run_dir / "control" / "key").read_bytes()
    prepare(settings_of(run_dir, config=config))
    assert (run_dir / "control" / "key").read_bytes() == before


def test_a_truncated_key_of_a_killed_pod_is_written_again(run_dir: Path) -> None:
    prepare(settings_of(run_dir))
    (run_dir / "control" / "key").write_bytes(b"truncated")
    prepare(settings_of(run_dir))
    assert len((run_dir / "control" / "key").read_bytes()) == 32


def test_another_config_is_another_run(run_dir: Path, config: Path) -> None:
    prepare(settings_of(run_dir, config=config))
    config.write_text("name: other\n")
    with pytest.raises(ConfigError, match="is not the config that this job was given") as caught:
        prepare(settings_of(run_dir, config=config))
    assert caught.value.cause == "another config is another run"
    assert (run_dir / "config.yaml").read_text() == "name: train\n"


def test_a_config_that_was_not_mounted(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the config .*/none.yaml cannot be read: No such file"):
        prepare(settings_of(run_dir, config=tmp_path / "none.yaml"))


def test_a_volume_that_cannot_be_written_has_a_hint(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the volume should be")
    with pytest.raises(ConfigError, match=r"the run directory .*/train cannot be written") as caught:
        prepare(settings_of(tmp_path / "runs" / "train"))
    assert "--fs-group GID" in (caught.value.hint or "")


@pytest.mark.parametrize("node", [0, 1])
def test_a_directory_of_another_user_is_refused_on_every_node(
    run_dir: Path, node: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(settings_of(run_dir))
    # The tests' user may write everywhere: the kernel's answer for another one.
    monkeypatch.setattr(os, "access", lambda path, mode: path != run_dir / "logs")
    with pytest.raises(ConfigError, match="cannot be written") as caught:
        prepare(settings_of(run_dir, node))
    assert "logs: not writable by uid" in (caught.value.cause or "")


def test_the_others_wait_and_print_for_what(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_run_dir, "_POLL_S", 0.02)
    notes: list[str] = []
    maker = threading.Timer(0.3, lambda: prepare(settings_of(run_dir)))
    maker.start()
    prepare(settings_of(run_dir, 1), notes=notes)
    maker.join()
    assert notes == [f"node 1 waits for node 0 to make {run_dir}/control/key, since 0 s"]


def test_the_wait_is_bounded(run_dir: Path) -> None:
    with pytest.raises(RendezvousError, match=r"node 0 has not made .*/control/key") as caught:
        prepare(settings_of(run_dir, 1), within_s=0.0)
    assert "not on one volume" in (caught.value.cause or "")
    assert not run_dir.exists(), "it creates nothing itself"


@contextmanager
def blocked(number: int) -> Iterator[None]:
    """As in an agent; the signal is taken at the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.sigtimedwait({number}, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_stop_ends_the_wait(run_dir: Path) -> None:
    with blocked(signal.SIGTERM):
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Preempted, match="node 1 was stopped before node 0"):
            prepare(settings_of(run_dir, 1), within_s=20)


def test_with_a_run_key_each_node_makes_its_own(tmp_path: Path, config: Path) -> None:
    for node in range(2):
        agent = replace(settings_of(tmp_path / str(node), node, config), run_key="word")
        prepare(agent)
        assert agent.run.config.read_text() == "name: train\n"
        assert not (agent.run.control / "key").exists()
        assert write_nonce(agent) == read_nonce(agent)
        assert "word" not in repr(agent)
    with_file = settings_of(tmp_path / "0", config=config)
    assert write_nonce(with_file) != write_nonce(agent), "one that shares a directory is another kind of node"
