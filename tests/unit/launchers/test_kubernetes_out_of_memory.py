"""A rank that the kernel killed for memory: OOMKilled and a verdict come together."""

from __future__ import annotations

import pytest
from kubernetes_bodies import Body, ended, job, verdict
from kubernetes_stand_ins import DIGITS, Api, put, set_job
from kubernetes_statuses import FAILED, seen

from dist_train.rundir import RunDir
from dist_train.rundir.failure import read_failure
from launchers.kubernetes import KubernetesLauncher

pytestmark = pytest.mark.filterwarnings("ignore:HTTPResponse:DeprecationWarning")
KILLED = {
    "source": "rank",
    "class": "signal",
    "rank": 1,
    "local_rank": 0,
    "node_rank": 1,
    "host": "digits-1",
    "pid": 9,
    "exit_code": 137,
    "signal": 9,
    "message": "killed by SIGKILL (often the kernel's out-of-memory killer: see `dmesg`)",
    "next": ["dist-train resume /runs/digits"],
}


def oom_killed(failure: Body | None, memory: str = "2Gi") -> Body:
    """The pod of node 1; `failure`: what its agent has written, where it lives on."""
    message = "" if failure is None else verdict(137, "not restarted", node=1, failure=failure)
    body = ended("b", 1, 137, message, reason="OOMKilled")
    body["spec"]["containers"][0]["resources"] = {"limits": {"memory": memory}}
    return body


def first(failure: Body | None) -> Body:
    """The pod of node 0, whose agent writes the same failure, or has only lost the other node."""
    found = (
        verdict(79, "node 1 was lost") if failure is None else verdict(137, "not restarted", failure=failure)
    )
    return ended("a", 0, found["code"], found)


class TestStatus:
    def test_of_a_killed_rank_names_the_limit(self) -> None:
        found = seen(job(condition=FAILED), first(KILLED), oom_killed(KILLED)).state
        assert found.exit_code == 137
        assert "killed by SIGKILL: out of memory at the limit of 2Gi of pod b (OOMKilled)" in found.detail
        assert "dmesg" not in found.detail

    def test_says_it_once_where_the_agent_has_said_it(self) -> None:
        """The agent names the file of the limit in its pod, the launcher the pod: one is enough."""
        said = {
            **KILLED,
            "class": "out_of_memory",
            "message": "killed by signal 9 (SIGKILL): out of memory at the limit of 2.0 GiB of its control "
            "group (/sys/fs/cgroup/memory.max, peak 2.0 GiB)",
            "memory_limit": 2 << 30,
        }
        found = seen(job(condition=FAILED), first(said), oom_killed(said))
        assert found.verdict is not None
        assert found.verdict.failure is not None
        assert found.verdict.failure.message == (
            "killed by signal 9 (SIGKILL): out of memory at the limit of 2Gi of pod b (OOMKilled)"
        )
        of_the_signal = seen(job(condition=FAILED), first(KILLED), oom_killed(KILLED)).verdict
        assert of_the_signal is not None
        assert of_the_signal.failure is not None
        assert of_the_signal.failure.cls == found.verdict.failure.cls == "out_of_memory"

    def test_of_a_killed_loader_worker_too(self) -> None:
        error = {**KILLED, "class": "exception", "signal": None, "message": "DataLoader worker is killed"}
        found = seen(job(condition=FAILED), first(error), oom_killed(error))
        assert found.verdict is not None
        assert found.verdict.failure is not None
        assert found.verdict.failure.message == "DataLoader worker is killed"
        assert found.verdict.failure.hint == (
            "the kernel killed a process of pod b at its limit of 2Gi (OOMKilled): more with --mem 4Gi"
        )

    def test_of_another_nodes_failure_stays(self) -> None:
        other = {**KILLED, "node_rank": 0}
        assert "dmesg" in seen(job(condition=FAILED), first(other), oom_killed(other)).state.detail

    @pytest.mark.parametrize(("limit", "more"), [("2Gi", "4Gi"), ("1536Mi", "3Gi"), ("", "")])
    def test_suggests_twice_the_limit(self, limit: str, more: str) -> None:
        found = seen(job(condition=FAILED), first(KILLED), oom_killed(KILLED, limit))
        assert found.more_memory == more


@pytest.mark.parametrize("failure", [KILLED, None])
def test_the_next_command_is_resume_with_more_memory(
    api: Api, submitted: RunDir, failure: Body | None, capfd: pytest.CaptureFixture[str]
) -> None:
    put(api, first(failure), oom_killed(failure))
    set_job(api, condition=FAILED)
    command = f"dist-train resume {submitted.path} --mem 4Gi"
    launcher = KubernetesLauncher()
    assert launcher.state(DIGITS, str(submitted.path)).next[0] == command
    assert launcher.wait(DIGITS, str(submitted.path)) == 137
    last = capfd.readouterr().err.splitlines()[-1]
    assert "out of memory at " in last
    assert "limit of 2Gi" in last
    assert last.endswith(f"({command})")
    if failure is not None:
        recorded = read_failure(submitted)
        assert recorded is not None
        assert command in recorded.next
