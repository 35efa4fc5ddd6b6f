"""Pods' output, read once or followed, through cut connections, failures and successor pods."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kubernetes_bodies import ended, job, pod, running, verdict
from kubernetes_stand_ins import DIGITS, JOBS, PODS, Api, Log, put

from dist_train.errors import NotFoundError
from dist_train.rundir import RunDir
from dist_train.rundir.attempt_lines import begin_line, restart_line
from dist_train.rundir.failure import Failure
from launchers._kubernetes.runner import pod_logs as module
from launchers._kubernetes.runner.pod_logs import LogPosition
from launchers._kubernetes.state import pod_watch as watch_module
from launchers.kubernetes import KubernetesLauncher

pytestmark = pytest.mark.filterwarnings("ignore:HTTPResponse:DeprecationWarning")
COMPLETE = {"type": "Complete"}
OLD = {"head": {"creationTimestamp": "2026-11-21T09:00:00Z"}}
Read = Callable[..., list[str]]


def at(second: int, text: str) -> tuple[str, str]:
    return f"2026-11-21T10:00:{second:02d}.5Z", text


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REOPEN_S", 0.02)
    for name in ("RETRY_FIRST_S", "RETRY_LONGEST_S"):
        monkeypatch.setattr(module, name, 0.05)
        monkeypatch.setattr(watch_module, name, 0.05)


@pytest.fixture
def read(submitted: RunDir, api: Api) -> Read:
    def lines(rank: int | None = None, attempt: int | None = None, follow: bool = False) -> list[str]:
        return list(KubernetesLauncher().logs(DIGITS, str(submitted.path), rank, attempt, follow))

    return lines


class TestOnce:
    def test_every_node_with_its_number_as_prefix(self, api: Api, read: Read) -> None:
        put(api, running("a", 0), running("b", 1))
        api.logs = {"a": Log([at(1, "epoch 0"), at(2, "[rank 1 gpu-1] oh")]), "b": Log([at(1, "of b")])}
        assert read() == ["[node 0] epoch 0", "[node 0] [rank 1 gpu-1] oh", "[node 1] of b"]

    def test_a_ranks_node_without_the_lines_of_other_ranks(
        self, api: Api, read: Read, capfd: pytest.CaptureFixture[str]
    ) -> None:
        put(api, running("a", 0), running("b", 1))
        texts = (
            "[rank 2 gpu-2] two",
            "[rank 3 gpu-2] three",
            "[ranks 2-3 gpu-2] both",
            "[dist-train gpu-2] note",
        )
        api.logs = {"b": Log([at(second, text) for second, text in enumerate(texts)])}
        assert read(rank=3) == list(texts[1:])
        assert read(rank=2) == [texts[0], *texts[2:]]
        assert "/runs/digits/logs/attempt-*/rank-3.log on the run volume" in capfd.readouterr().err

    def test_the_agents_container_is_asked_for(self, api: Api, read: Read) -> None:
        put(api, running("a", 0))
        api.logs = {"a": Log([at(1, "x")])}
        read(rank=0)
        [request] = [request for request in api.requests if request.path.endswith("/log")]
        assert request.query == {"container": "node", "timestamps": "true"}

    def test_of_a_failed_pod_before_its_successor_has_started(self, api: Api, read: Read) -> None:
        put(api, ended("a1", 0, 137, **OLD), pod("a2", 0, state={"waiting": {"reason": "ContainerCreating"}}))
        api.logs = {"a1": Log([at(1, "the last words")])}
        assert read(rank=0) == ["the last words"]

    def test_the_newest_pod_that_has_started(self, api: Api, read: Read) -> None:
        put(api, ended("a1", 0, 137, **OLD), running("a2", 0))
        api.logs = {"a1": Log([at(1, "old")]), "a2": Log([at(2, "new")])}
        assert read(rank=0) == ["new"]

    def test_an_attempt_by_what_the_agents_counted(self, api: Api, read: Read) -> None:
        put(api, ended("a1", 0, 137, verdict(137, attempt=1), **OLD), running("a2", 0))
        api.logs = {"a1": Log([at(1, "attempts 0 and 1")]), "a2": Log([at(2, "attempt 2")])}
        assert read(rank=0, attempt=0) == read(rank=0, attempt=1) == ["attempts 0 and 1"]
        assert read(rank=0, attempt=2) == ["attempt 2"]

    def test_an_attempt_whose_pod_was_killed_without_a_verdict(self, api: Api, read: Read) -> None:
        put(api, ended("a1", 0, 137, **OLD), running("a2", 0))
        begins = f"[dist-train digits-0] {begin_line(1, 20)}"
        api.logs = {"a1": Log([at(1, "the first")]), "a2": Log([at(2, begins), at(3, "the second")])}
        assert read(rank=0, attempt=0) == ["the first"]
        assert read(rank=0, attempt=1) == [begins, "the second"]

    def test_attempts_that_one_agent_has_run(self, api: Api, read: Read) -> None:
        """Ranks that are started again in their pod: its log has several attempts."""
        put(api, ended("a1", 0, 137, **OLD), running("a2", 0))
        killed = Failure("rank", "signal", 0, 0, 0, exit_code=137, message="killed by SIGKILL")
        again = f"[dist-train digits-0] {restart_line(1, None, killed, 'restart 1 of 3')}"
        begins = f"[dist-train digits-0] {begin_line(2, 20)}"
        api.logs = {"a1": Log([at(1, "one"), at(2, again)]), "a2": Log([at(3, begins)])}
        assert read(rank=0, attempt=0) == read(rank=0, attempt=1) == ["one", again]
        assert read(rank=0, attempt=2) == [begins]

    @pytest.mark.parametrize("over", [False, True])
    def test_an_attempt_whose_pod_is_gone(self, api: Api, read: Read, over: bool) -> None:
        put(api, ended("a2", 0, 1, verdict(1, attempt=1)) if over else running("a2", 0))
        api.logs = {"a2": Log([at(2, f"[dist-train digits-0] {begin_line(1, 20)}")])}
        with pytest.raises(NotFoundError, match="node 0 has no pod with a log in attempt 1") as caught:
            read(rank=0, attempt=0)
        assert "the pod of attempt 1 is gone" in str(caught.value.cause)

    def test_a_missing_attempt(self, api: Api, read: Read) -> None:
        put(api, ended("a1", 0, 1, verdict(1, attempt=1)))
        with pytest.raises(NotFoundError, match="no pod with a log in attempt 3") as caught:
            read(rank=0, attempt=2)
        assert "of attempts 1, 2" in str(caught.value.cause)

    def test_no_pod_has_started(self, api: Api, read: Read) -> None:
        put(api, pod("a", 0))
        with pytest.raises(NotFoundError, match="node 0 has no pod with a log") as caught:
            read()
        assert caught.value.cause == "its pods: a (Pending)"

    def test_one_node_without_a_log_does_not_hide_the_other(self, api: Api, read: Read) -> None:
        put(api, running("b", 1))
        api.logs = {"b": Log([at(1, "of b")])}
        assert read() == ["[node 1] of b"]


def test_of_a_job_that_is_gone(api: Api, read: Read) -> None:
    del api.objects[f"{JOBS}/digits"]
    with pytest.raises(
        NotFoundError, match="has no pod of Job digits in namespace default any more"
    ) as caught:
        read(rank=0)
    assert "on the run volume" in str(caught.value.hint)


class TestPosition:
    def test_repeated_lines_are_skipped(self) -> None:
        position = LogPosition()
        first = [b"2026-11-21T10:00:01.1Z a", b"2026-11-21T10:00:01.2Z b", b"2026-11-21T10:00:01.2Z c"]
        assert [position.take(line) for line in first] == ["a", "b", "c"]
        assert position.since == "2026-11-21T10:00:01Z"
        position.resume()
        again = [*first, b"2026-11-21T10:00:01.2Z d", b"2026-11-21T10:00:01.25Z e"]
        assert [position.take(line) for line in again] == [None, None, None, "d", "e"]

    def test_fractions_without_their_last_zeros_sort(self) -> None:
        position = LogPosition()
        lines = [
            b"2026-11-21T10:00:01.09Z a",
            b"2026-11-21T10:00:01.1Z b",
            b"2026-11-21T10:00:01.123456789Z c",
        ]
        assert [position.take(line) for line in lines] == ["a", "b", "c"]
        position.resume()
        assert [position.take(line) for line in lines] == [None, None, None]

    def test_a_line_without_a_stamp_is_shown_once(self) -> None:
        position = LogPosition()
        assert position.take(b"failed to open log file") == "failed to open log file"
        position.resume()
        assert position.take(b"failed to open log file") is None
        assert position.take(b"another") == "another"


class TestFollowed:
    """`during` runs while the reader reads, and ends the job."""

    @pytest.fixture
    def during(self, api: Api) -> Iterator[Callable[[Callable[[], None]], None]]:
        threads = []

        def start(work: Callable[[], None]) -> None:
            threads.append(threading.Thread(target=work))
            threads[-1].start()

        yield start
        for thread in threads:
            thread.join(10)

    def write(self, api: Api, name: str, *lines: tuple[str, str], end: bool = False) -> None:
        with api.changed:
            api.logs[name].lines += lines
            api.logs[name].ended = end
            api.changed.notify_all()

    def finish(self, api: Api, *pods: dict) -> None:
        put(api, *pods)
        api.put(f"{JOBS}/digits", job(condition=COMPLETE))

    def test_lines_as_they_arrive_until_the_job_has_ended(
        self, api: Api, read: Read, during: Callable[[Callable[[], None]], None]
    ) -> None:
        api.put(f"{JOBS}/digits", job())
        put(api, running("a", 0))
        api.logs = {"a": Log([at(1, "one")], ended=False)}

        def work() -> None:
            time.sleep(0.3)
            self.finish(api, ended("a", 0, 0, verdict(0)))
            self.write(api, "a", at(2, "two"), end=True)

        during(work)
        assert read(rank=0, follow=True) == ["one", "two"]

    def test_a_cut_connection_repeats_nothing_and_loses_nothing(
        self, api: Api, read: Read, during: Callable[[Callable[[], None]], None]
    ) -> None:
        api.put(f"{JOBS}/digits", job())
        put(api, running("a", 0))
        lines = [at(1, "a"), at(1, "b"), at(1, "c"), at(2, "d")]
        api.logs = {"a": Log(lines, ended=False, cut=2)}

        def work() -> None:
            time.sleep(0.4)
            self.finish(api, ended("a", 0, 0, verdict(0)))
            self.write(api, "a", at(3, "e"), end=True)

        during(work)
        assert read(rank=0, follow=True) == ["a", "b", "c", "d", "e"]
        sinces = [request.query.get("sinceTime") for request in api.requests if request.path.endswith("/log")]
        assert sinces[:2] == [None, "2026-11-21T10:00:01Z"]

    def test_continues_in_the_successor_pod(
        self, api: Api, read: Read, during: Callable[[Callable[[], None]], None]
    ) -> None:
        api.put(f"{JOBS}/digits", job())
        put(api, ended("a0", 0, 79, **OLD), running("a1", 0))
        api.logs = {"a0": Log([at(0, "long ago")]), "a1": Log([at(1, "first")], ended=False), "a2": Log()}

        def work() -> None:
            time.sleep(0.3)
            put(api, ended("a1", 0, 79, verdict(79)))
            self.write(api, "a1", at(2, "crash"), end=True)
            api.logs["a2"] = Log([at(5, "second")])
            later = {"creationTimestamp": "2026-11-21T10:07:00Z"}
            self.finish(api, ended("a2", 0, 0, verdict(0), head=later))

        during(work)
        assert read(rank=0, follow=True) == ["first", "crash", "second"]

    def test_an_api_server_that_is_unreachable_for_a_while(
        self, api: Api, read: Read, during: Callable[[Callable[[], None]], None]
    ) -> None:
        api.put(f"{JOBS}/digits", job())
        put(api, running("a", 0))
        api.logs = {"a": Log([at(1, "before"), at(2, "after")], ended=False, cut=1)}
        away = threading.Event()

        def work() -> None:
            while api.logs["a"].cut is not None:
                time.sleep(0.01)
            api.answer("GET", ".*", 503, "not now")
            away.set()
            time.sleep(0.3)
            api.responses.clear()
            self.finish(api, ended("a", 0, 0, verdict(0)))
            self.write(api, "a", end=True)

        during(work)
        assert read(rank=0, follow=True) == ["before", "after"]
        assert away.is_set()

    @pytest.mark.parametrize("path", [f"{PODS}.*/log", ".*"])
    def test_a_403_of_a_moment_repeats_nothing_and_loses_nothing(
        self, api: Api, read: Read, during: Callable[[Callable[[], None]], None], path: str
    ) -> None:
        api.put(f"{JOBS}/digits", job())
        put(api, running("a", 0))
        api.logs = {"a": Log([at(1, "before"), at(2, "after")], ended=False, cut=1)}

        def work() -> None:
            while api.logs["a"].cut is not None:
                time.sleep(0.01)
            api.refuse("GET", path, 403, 'User "me" cannot get resource "pods"', "Forbidden")
            time.sleep(0.3)
            api.responses.clear()
            self.finish(api, ended("a", 0, 0, verdict(0)))
            self.write(api, "a", end=True)

        during(work)
        assert read(rank=0, follow=True) == ["before", "after"]

    def test_a_pending_job_is_waited_for(self, api: Api, read: Read) -> None:
        api.put(f"{JOBS}/digits", job())
        put(api, pod("a", 0))
        api.logs = {"a": Log([at(1, "begun")])}

        def late() -> Iterator[dict]:
            time.sleep(0.3)
            self.finish(api, ended("a", 0, 0, verdict(0)))
            yield {"type": "MODIFIED", "object": ended("a", 0, 0, verdict(0))}

        api.watches = [late()]
        begun = time.monotonic()
        assert read(rank=0, follow=True) == ["begun"]
        assert time.monotonic() - begun < 1.9, "the watch has woken it, not the clock"


def test_the_local_record_is_not_needed_to_read_a_log(api: Api, tmp_path: Path) -> None:
    api.put(f"{JOBS}/digits", job())
    put(api, running("a", 0))
    api.logs = {"a": Log([at(1, "x")])}
    empty = RunDir(tmp_path / "empty")
    empty.create()
    launcher = KubernetesLauncher()
    assert list(launcher.logs(DIGITS, str(empty.path), 0, None, False)) == ["x"]
