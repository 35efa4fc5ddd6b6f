"""Following a job to its end over real HTTP: log, state changes, end, and the watch."""

from __future__ import annotations

import _thread
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from kubernetes_bodies import Body, ended, pod, running, verdict
from kubernetes_stand_ins import DIGITS, JOBS, PODS, Api, Log, put, set_job, status_object

from dist_train.jobs import polling as pace_module
from dist_train.jobs.launcher import Detached
from dist_train.rundir import RunDir
from dist_train.rundir.failure import read_failure
from dist_train.rundir.outcome_text import RULE
from dist_train.rundir.result import read_result
from launchers._kubernetes.api import lasting_refusal as refusal_module
from launchers._kubernetes.api.cluster import Cluster
from launchers._kubernetes.follow import follow_output as output_module
from launchers._kubernetes.runner import pod_logs as logs_module
from launchers._kubernetes.state import pod_watch as watch_module
from launchers._kubernetes.state.pod_watch import PodWatch, watch_pods
from launchers.kubernetes import KubernetesLauncher

pytestmark = pytest.mark.filterwarnings("ignore:HTTPResponse:DeprecationWarning")
FAILED = {"type": "Failed", "reason": "BackoffLimitExceeded"}
FAILURE = {
    "source": "rank",
    "class": "exit",
    "rank": 1,
    "local_rank": 1,
    "node_rank": 0,
    "host": "digits-0",
    "pid": 9,
    "exit_code": 41,
    "message": "ended with exit code 41",
    "log": "/runs/digits/logs/attempt-0/rank-1.log",
    "next": ["dist-train resume /runs/digits"],
}
InThread = Callable[[Callable[[], None]], None]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace_module, "FIRST_S", 0.05)
    monkeypatch.setattr(logs_module, "_REOPEN_S", 0.02)
    for module in (logs_module, watch_module):
        monkeypatch.setattr(module, "RETRY_FIRST_S", 0.05)
        monkeypatch.setattr(module, "RETRY_LONGEST_S", 0.05)


@pytest.fixture
def in_thread() -> Iterator[InThread]:
    threads: list[threading.Thread] = []

    def start(work: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=work))
        threads[-1].start()

    yield start
    for thread in threads:
        thread.join(10)


def at(second: int, text: str) -> tuple[str, str]:
    return f"2026-11-21T10:00:{second:02d}Z", text


def wait(launcher: KubernetesLauncher, run: RunDir) -> int:
    return launcher.wait(DIGITS, str(run.path))


class TestFollow:
    def test_to_success(
        self,
        api: Api,
        submitted: RunDir,
        launcher: KubernetesLauncher,
        in_thread: InThread,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        put(api, pod("a", 0, state={"waiting": {"reason": "ErrImagePull", "message": "no such image"}}))

        def work() -> None:
            time.sleep(0.4)
            api.logs["a"] = Log([at(1, "epoch 0"), at(2, "epoch 1")], ended=False)
            put(api, running("a", 0), running("b", 1))
            time.sleep(0.4)
            put(api, ended("a", 0, 0, verdict(0)), ended("b", 1))
            set_job(api, condition={"type": "Complete"})
            with api.changed:
                api.logs["a"].lines.append(at(3, "done"))
                api.logs["a"].ended = True
                api.changed.notify_all()

        in_thread(work)
        assert wait(launcher, submitted) == 0
        printed = capfd.readouterr()
        assert printed.out == "epoch 0\nepoch 1\ndone\n"
        said = printed.err.splitlines()
        assert any(
            "job digits is pending: " in line and "cannot be pulled (no such image)" in line for line in said
        )
        assert "[dist-train] job digits is running: on gpu-1" in said
        assert len(said) == len(set(said)), "each thing once"

    def test_a_stopped_reader_of_the_terminal_hides_no_end(
        self, api: Api, submitted: RunDir, launcher: KubernetesLauncher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(output_module, "STOPPED_READER_S", 0.3)
        read, write = os.pipe()
        stream = os.fdopen(write, "w")
        monkeypatch.setattr(sys, "stdout", stream)
        put(api, ended("a", 0, 0, verdict(0)), ended("b", 1))
        api.logs["a"] = Log([at(second, "x" * 4000) for second in range(50)], ended=True)
        set_job(api, condition={"type": "Complete"})
        codes: list[int] = []
        thread = threading.Thread(target=lambda: codes.append(wait(launcher, submitted)), daemon=True)
        thread.start()
        thread.join(30.0)
        assert codes == [0], "it waits for the reader"
        assert json.loads((submitted.control / "ended.json").read_text())["state"]["phase"] == "done"
        threading.Thread(target=stream.close, daemon=True).start()
        while os.read(read, 1 << 20):
            pass
        os.close(read)

    def test_a_rank_that_failed(
        self,
        api: Api,
        submitted: RunDir,
        launcher: KubernetesLauncher,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        block = [RULE, "FAILED: rank 1: ended with exit code 41", "  where attempt 0", RULE]
        api.logs["a"] = Log([at(n, text) for n, text in enumerate(["epoch 0", *block, "after"])])
        put(api, ended("a", 0, 41, verdict(41, "not restarted", failure=FAILURE)), ended("b", 1, 41))
        set_job(api, condition=FAILED)
        assert wait(launcher, submitted) == 41
        assert capfd.readouterr().out == "epoch 0\nFAILED: rank 1: ended with exit code 41\nafter\n"
        failure = read_failure(submitted)
        assert failure is not None
        assert (failure.rank, failure.exit_code) == (1, 41)
        assert failure.next[1] == f"dist-train resume {submitted.path}", "the command of this machine"
        assert failure.log == "/runs/digits/logs/attempt-0/rank-1.log (on the run volume)"

    def test_the_result_of_the_agent_is_recorded_here(
        self, api: Api, submitted: RunDir, launcher: KubernetesLauncher
    ) -> None:
        figures = {"run_id": "digits-1f", "status": "done", "exit_code": 0, "steps": 9, "epochs": 1}
        figures |= {"samples": 100, "world_size": 4, "attempts": 1, "weights_hash": "ab"}
        put(api, ended("a", 0, 0, verdict(0, result=figures)))
        set_job(api, condition={"type": "Complete"})
        assert wait(launcher, submitted) == 0
        result = read_result(submitted)
        assert result is not None
        assert (result.steps, result.weights_hash) == (9, "ab")

    def test_the_verdict_of_a_deleted_pod_counts(
        self, api: Api, submitted: RunDir, launcher: KubernetesLauncher
    ) -> None:
        """A Job at its time limit deletes its pods: only a watch has their verdicts."""
        put(api, running("a", 0), running("b", 1))
        api.logs["a"] = Log([at(1, "x")], ended=True)

        def late() -> Iterator[Body]:
            time.sleep(0.3)
            last = ended("a", 0, 75, verdict(75, "saved at step 8", step=8))
            yield {"type": "MODIFIED", "object": last}
            for name in ("a", "b"):
                api.objects.pop(f"{PODS}/{name}")
            set_job(api, condition={"type": "Failed", "reason": "DeadlineExceeded"})
            yield {"type": "DELETED", "object": last}

        api.watches = [late()]
        assert wait(launcher, submitted) == 75
        again = launcher.state(DIGITS, str(submitted.path))
        assert (again.phase, again.exit_code) == ("stopped", 75), "what was seen of the end is kept"
        del api.objects[f"{JOBS}/digits"]
        gone = KubernetesLauncher().state(DIGITS, str(submitted.path))
        assert (gone.phase, gone.exit_code, gone.source) == ("stopped", 75, "run directory here")
        assert "saved at step 8" in gone.detail

    def test_an_unreachable_server_is_not_a_failed_job(
        self,
        api: Api,
        submitted: RunDir,
        launcher: KubernetesLauncher,
        in_thread: InThread,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        put(api, running("a", 0), running("b", 1))
        api.logs["a"] = Log([at(1, "x")])

        def work() -> None:
            time.sleep(0.3)
            api.answer("GET", ".*", 503, "gone fishing")
            time.sleep(0.4)
            put(api, ended("a", 0, 0, verdict(0)), ended("b", 1))
            set_job(api, condition={"type": "Complete"})
            api.responses.clear()

        api.watches = [[]] * 100
        in_thread(work)
        assert wait(launcher, submitted) == 0
        said = capfd.readouterr().err
        assert "job digits is unknown: the API server" in said
        assert "gone fishing" in said
        assert "failed" not in said

    def test_ctrl_c_leaves_the_job_alone(
        self, api: Api, submitted: RunDir, launcher: KubernetesLauncher, in_thread: InThread
    ) -> None:
        put(api, running("a", 0), running("b", 1))
        api.logs["a"] = Log([at(1, "x")], ended=False)
        before = threading.active_count()

        def interrupt() -> None:
            time.sleep(0.4)
            _thread.interrupt_main()

        in_thread(interrupt)
        begun = time.monotonic()
        with pytest.raises(Detached):
            wait(launcher, submitted)
        assert time.monotonic() - begun < 5, "threads that read are ended, not waited for"
        assert "DELETE" not in {request.method for request in api.requests}
        names = {thread.name for thread in threading.enumerate()}
        assert not names & {"pod-log", "pod-watch"}, before

    def test_the_job_is_deleted(
        self, api: Api, submitted: RunDir, launcher: KubernetesLauncher, in_thread: InThread
    ) -> None:
        put(api, running("a", 0))

        def work() -> None:
            time.sleep(0.3)
            for path in (f"{JOBS}/digits", f"{PODS}/a"):
                del api.objects[path]

        in_thread(work)
        assert wait(launcher, submitted) == 77


class TestWatch:
    """watch_pods, in this thread: the fake server's events end it."""

    def names(self, pod_watch: PodWatch) -> list[str]:
        return sorted(pod.name for pod in pod_watch.seen)

    def test_an_expired_version_lists_again(self, api: Api) -> None:
        put(api, running("a", 0))
        pod_watch = PodWatch()

        def last() -> Iterator[Body]:
            yield {"type": "ADDED", "object": running("c", 0)}
            pod_watch.stop()
            yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "999"}}}

        def expired() -> Iterator[Body]:
            put(api, running("b", 1))  # happens between the versions
            yield {"type": "ERROR", "object": status_object(410, "too old resource version", "Expired")}

        api.watches = [status_object(410, "too old", "Expired"), expired(), last()]
        watch_pods(Cluster.open(None, "default"), "digits-1f", pod_watch)
        assert self.names(pod_watch) == ["a", "b", "c"]
        watched = [request.query for request in api.requests if "watch" in request.query]
        lists = [request for request in api.requests if request.path == PODS and "watch" not in request.query]
        assert (len(watched), len(lists)) == (3, 3)

    def test_a_watch_that_the_server_ends_continues_at_its_version(self, api: Api) -> None:
        pod_watch = PodWatch()

        def last() -> Iterator[Body]:
            pod_watch.stop()
            yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "999"}}}

        changed = running("a", 0)
        changed["metadata"]["resourceVersion"] = "512"
        api.watches = [[{"type": "ADDED", "object": changed}], last()]
        watch_pods(Cluster.open(None, "default"), "digits-1f", pod_watch)
        watched = [request.query["resourceVersion"] for request in api.requests if "watch" in request.query]
        assert watched[1] == "512"
        assert len([request for request in api.requests if "watch" not in request.query]) == 1

    def test_an_unreachable_server_is_tried_again(self, api: Api) -> None:
        pod_watch = PodWatch()
        put(api, running("a", 0))

        def last() -> Iterator[Body]:
            pod_watch.stop()
            yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}

        api.watches = [last()]
        api.answer("GET", PODS, 503, "away", times=3)
        watch_pods(Cluster.open(None, "default"), "digits-1f", pod_watch)
        assert self.names(pod_watch) == ["a"]

    @pytest.mark.parametrize("refused", ["list", "watch"])
    def test_a_403_of_a_moment_is_tried_again(self, api: Api, refused: str) -> None:
        """The API server sends some after its own restart, while its authorizer has no roles yet."""
        pod_watch = PodWatch()
        put(api, running("a", 0))
        rbac = f'pods is forbidden: User "me" cannot {refused} resource "pods" in API group ""'

        def last() -> Iterator[Body]:
            yield {"type": "ADDED", "object": running("b", 1)}
            pod_watch.stop()
            yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}

        if refused == "list":
            api.answer("GET", PODS, 403, status_object(403, rbac, "Forbidden"), times=3)
            api.watches = [last()]
        else:
            api.watches = [status_object(403, rbac, "Forbidden")] * 3 + [last()]
        watch_pods(Cluster.open(None, "default"), "digits-1f", pod_watch)
        assert self.names(pod_watch) == ["a", "b"]

    def test_a_403_that_lasts_ends_the_thread(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        api.refuse("GET", PODS, 403, 'cannot watch resource "pods"', "Forbidden")
        monkeypatch.setattr(refusal_module, "BELIEVED_AFTER_S", 0.3)
        watch_pods(Cluster.open(None, "default"), "digits-1f", PodWatch())
        assert 2 <= len(api.requests) <= 10
