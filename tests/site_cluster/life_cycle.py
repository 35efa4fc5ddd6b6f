"""The life cycle of a run on the cluster of `make test-cluster`; the emulator's tests run this same file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config
from site_cluster.site import Site, read_site

from dist_train.testing import CliResult, launch_cli
from launchers._kubernetes.manifest.names import RUN_LABEL

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(900)]
# An image may have to be pulled, and a machine to be started.
_LONG_S = 600.0
_LENGTH = (
    *("trainer.epochs=10", "trainer.log_every_steps=5"),
    *("checkpoint.every_steps=20", "checkpoint.every_epochs=null"),
)
_HASHES = ("weights_hash", "state_hash", "metrics_hash")
Hashes = tuple[str, ...]


class SiteRun:
    """A run of the session."""

    def __init__(self, site: Site, folder: Path, core: client.CoreV1Api, name: str) -> None:
        self._site, self._folder, self._core, self._name = site, folder, core, name

    def launch(self, *words: str) -> CliResult:
        """Launch it, to its end or with --detach."""
        return self._call(*self._site.launch(self._name, *_LENGTH, *words))

    def verb(self, verb: str, *words: str) -> CliResult:
        """Run another command."""
        return self._call(verb, self._site.run(self._name), *words)

    def status(self) -> dict[str, Any]:
        """The record of `status --json`."""
        record: dict[str, Any] = json.loads(self.verb("status", "--json").stdout)
        return record

    def hashes(self) -> Hashes:
        """Of the finished run, by a pod's termination message: a detached launch records no result here."""
        ends = [pod.status.container_statuses[0].state.terminated for pod in self.pods()]
        verdicts = [json.loads(end.message) for end in ends if end is not None and end.exit_code == 0]
        results = [verdict["result"] for verdict in verdicts if verdict["result"] is not None]
        assert results, self.verb("status")
        return tuple(results[0][name] for name in _HASHES)

    def pods(self) -> list[Any]:
        """Its pods, by node."""
        selector = f"{RUN_LABEL}={self._site.run(self._name)}"
        found = self._core.list_namespaced_pod(self._site.namespace, label_selector=selector).items
        return sorted(found, key=lambda pod: str(pod.metadata.name))

    def delete_pod(self, node: int, grace_s: int | None = None) -> None:
        """As a drain does; `grace_s` 0: killed at once."""
        name = self.pods()[node].metadata.name
        self._core.delete_namespaced_pod(name, self._site.namespace, grace_period_seconds=grace_s)

    def wait_for_text(self, text: str) -> None:
        """Wait until node 0 has printed it."""
        self._wait(lambda: text in self._log(), f"{text!r} in node 0's log")

    def wait_for_end(self) -> dict[str, Any]:
        """Wait until it has ended, and return its status."""
        self._wait(lambda: self.status()["exit_code"] is not None, "the end", pause_s=2.0)
        return self.status()

    def wait_until_gone(self) -> None:
        """Wait until no pod is left."""
        self._wait(lambda: not self.pods(), "no pod")

    def _log(self) -> str:
        try:
            pods = [pod for pod in self.pods() if pod.status.phase == "Running"]
            name = pods[0].metadata.name
            return str(self._core.read_namespaced_pod_log(name, self._site.namespace))
        except (IndexError, client.ApiException):
            return ""

    def _wait(self, ready: Callable[[], bool], what: str, pause_s: float = 0.2) -> None:
        deadline = time.monotonic() + _LONG_S
        while not ready():
            assert time.monotonic() < deadline, f"not within {_LONG_S:g} s: {what}\n{self.verb('status')}"
            time.sleep(pause_s)

    def _call(self, *words: str) -> CliResult:
        return launch_cli(list(words), cwd=self._folder, timeout_s=_LONG_S)


@pytest.fixture(scope="module")
def new_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], SiteRun]]:
    site, folder = read_site(), tmp_path_factory.mktemp("site")
    api = config.new_client_from_config()
    yield lambda name: SiteRun(site, folder, client.CoreV1Api(api), name)
    api.close()


@pytest.fixture(scope="module")
def undisturbed(new_run: Callable[[str], SiteRun]) -> Hashes:
    """Submitted, followed to its end, read: without a fault."""
    run = new_run("plain")
    done = run.launch()
    assert done.code == 0, done
    assert done.stdout.count("step 5/") == 1, done
    assert "step 5/" in run.verb("logs", "--rank", "0").stdout
    assert run.verb("status", "--exit-code").code == 0
    return run.hashes()


def test_a_run_is_followed_to_its_end(undisturbed: Hashes) -> None:
    assert all(undisturbed)


def test_a_killed_rank_is_started_again_within_its_pod(
    new_run: Callable[[str], SiteRun], undisturbed: Hashes
) -> None:
    run = new_run("rank")
    done = run.launch("--env", "DIST_TRAIN_INJECT=kill:rank=1,step=45")
    assert done.code == 0, done
    assert run.hashes() == undisturbed
    assert [line for line in run.status()["nodes_now"] if "restarts 1" not in line] == []


def test_a_killed_pod_restarts_the_gang(new_run: Callable[[str], SiteRun], undisturbed: Hashes) -> None:
    run = new_run("killed")
    assert run.launch("--detach").code == 0
    run.wait_for_text("evaluation after epoch 2/")
    run.delete_pod(1, grace_s=0)
    ended = run.wait_for_end()
    assert ended["exit_code"] == 0, ended
    assert run.hashes() == undisturbed


def test_a_drained_pod_saves_and_the_gang_continues(
    new_run: Callable[[str], SiteRun], undisturbed: Hashes
) -> None:
    run = new_run("drained")
    assert run.launch("--detach").code == 0
    run.wait_for_text("step 5/")
    run.delete_pod(1)
    ended = run.wait_for_end()
    assert ended["exit_code"] == 0, ended
    assert run.hashes() == undisturbed
    assert [line for line in ended["nodes_now"] if "restarts 0" in line] == []


def test_cancel_removes_everything_and_resume_continues(
    new_run: Callable[[str], SiteRun], undisturbed: Hashes
) -> None:
    run = new_run("cancelled")
    assert run.launch("--detach").code == 0
    run.wait_for_text("step 5/")
    assert run.verb("cancel").code == 0
    run.wait_until_gone()
    assert run.verb("status", "--exit-code").code == 77
    resumed = run.verb("resume")
    assert resumed.code == 0, resumed
    assert run.hashes() == undisturbed
