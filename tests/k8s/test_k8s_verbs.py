"""The verbs besides launch, for jobs whose pods' state the test sets: logs, list, status, cancel, resume."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.harness.runs import TWO_BY_TWO, workspace
from cluster.harness.scene import SCRIPT, Followed, Scene, termination_message
from cluster.kubernetes_cluster import KubernetesCluster
from cluster.objects import CONFIG_MAPS, JOBS, PODS, SERVICES

pytestmark = pytest.mark.timeout(90)
SECONDS = 20.0


@pytest.fixture
def scene(control_plane: KubernetesCluster, tmp_path: Path) -> Scene:
    """A folder with a script to launch; nothing runs pods."""
    workspace(control_plane, tmp_path)
    (tmp_path / "code" / SCRIPT).write_text("print('hello')\n")
    return Scene(control_plane, tmp_path)


@contextmanager
def following_logs(scene: Scene, *words: str) -> Iterator[Followed]:
    """`dist-train logs -f` in the background."""
    out = scene.folder / "logs.txt"
    argv = [sys.executable, "-P", "-m", "dist_train.cli.main", "logs", "-f", *words]
    with out.open("wb") as file:
        command = subprocess.Popen(
            argv,
            cwd=scene.folder / "code",
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        yield Followed(command, out)
    finally:
        command.kill()
        command.wait()


class TestLogs:
    @pytest.mark.proof
    def test_a_rank_is_read_from_its_nodes_pod(self, scene: Scene) -> None:
        scene.submit("four", size=TWO_BY_TWO)
        first, second = scene.running()
        scene.plane.manual_kubelet.write(first, "of node 0", "[rank 1 a] one")
        scene.plane.manual_kubelet.write(
            second, "of node 1", "[rank 2 b] two", "[ranks 2-3 b] both", "[rank 3 b] three"
        )
        assert scene.verb("logs", "four", "--rank", "3").stdout.splitlines() == [
            "of node 1",
            "[ranks 2-3 b] both",
            "[rank 3 b] three",
        ]
        both = scene.verb("logs", "four").stdout.splitlines()
        assert both[0] == "[node 0] of node 0"
        assert "[node 1] [rank 3 b] three" in both

    @pytest.mark.proves(
        "`logs` by rank, of crashed pods too; a watch that expires and a server that goes away lose no line",
    )
    @pytest.mark.proof
    def test_of_a_pod_that_has_crashed(self, scene: Scene) -> None:
        scene.submit("crashed", "--max-restarts", "0")
        first, second = scene.running()
        scene.plane.manual_kubelet.write(second, "the last line before the crash")
        scene.plane.manual_kubelet.end(second, 139)
        scene.plane.manual_kubelet.end(first, 79, termination_message(79, "node 1 was lost"))
        scene.plane.wait_job_result("Failed: BackoffLimitExceeded")
        result = scene.verb("logs", "crashed", "--rank", "1")
        assert (result.code, result.stdout) == (0, "the last line before the crash\n"), result

    @pytest.mark.proof
    def test_before_the_next_pod_has_started_it_is_the_previous_ones(self, scene: Scene) -> None:
        scene.submit("again")
        old = scene.running()
        scene.plane.manual_kubelet.write(old[0], "of the first start")
        for pod in old:
            scene.plane.manual_kubelet.end(pod, 75)
        scene.pods()
        assert scene.verb("logs", "again", "--rank", "0").stdout == "of the first start\n"

    @pytest.mark.proof
    def test_of_a_job_without_pods(self, scene: Scene) -> None:
        scene.plane.refuse_pods("exceeded quota: team")
        scene.submit("none")
        result = scene.verb("logs", "none")
        assert result.code == 66, result
        assert "has no pod with a log" in result.stderr
        assert "kubectl -n default get pods" in result.stderr

    @pytest.mark.proof
    def test_followed_through_a_restart_to_the_end(self, scene: Scene) -> None:
        scene.submit("long", size=TWO_BY_TWO)
        with following_logs(scene, "long", "--rank", "2") as followed:
            for start in (1, 2):
                first, second = scene.running()
                scene.plane.manual_kubelet.write(first, "of the other node")
                scene.plane.manual_kubelet.write(second, f"start {start}", "[rank 3 b] of the other rank")
                followed.wait_output(f"start {start}", SECONDS)
                for pod in (first, second):
                    scene.plane.manual_kubelet.end(pod, 79 if start == 1 else 0)
            assert followed.code() == 0
        assert followed.text.splitlines() == ["start 1", "start 2"]


class TestServerAway:
    """No line is lost, and none is repeated."""

    def expected(self) -> list[str]:
        return [f"line {number}" for number in range(9)]

    def talk(self, scene: Scene, followed: Followed) -> None:
        """Nine lines: before, during and after an outage of the server, and after its versions expired."""
        plane, (first, second) = scene.plane, scene.running()
        plane.manual_kubelet.write(first, *self.expected()[:2])
        followed.wait_output("line 1", SECONDS)
        plane.down()
        plane.manual_kubelet.write(first, *self.expected()[2:4])
        plane.up()
        plane.manual_kubelet.write(first, *self.expected()[4:6])
        followed.wait_output("line 5", SECONDS)
        plane.expire()
        plane.manual_kubelet.write(first, *self.expected()[6:8])
        followed.wait_output("line 7", SECONDS)
        plane.manual_kubelet.write(first, "line 8")
        for pod in (first, second):
            plane.manual_kubelet.end(pod, message=termination_message(0, node=pod.index))

    @pytest.mark.proves(
        "`logs` by rank, of crashed pods too; a watch that expires and a server that goes away lose no line",
    )
    def test_launch_continues(self, scene: Scene) -> None:
        with scene.follow("away") as followed:
            self.talk(scene, followed)
            assert followed.code() == 0, followed.text
        assert [line for line in followed.text.splitlines() if line.startswith("line")] == self.expected()

    @pytest.mark.proves(
        "`logs` by rank, of crashed pods too; a watch that expires and a server that goes away lose no line",
    )
    @pytest.mark.proof
    def test_logs_continue(self, scene: Scene) -> None:
        scene.submit("away")
        with following_logs(scene, "away", "--rank", "0") as followed:
            self.talk(scene, followed)
            assert followed.code() == 0, followed.text
        assert followed.text.splitlines() == self.expected()

    @pytest.mark.proof
    def test_an_end_in_the_meantime_is_reported(self, scene: Scene) -> None:
        with scene.follow("away", "--max-restarts", "0") as followed:
            pods = scene.running()
            followed.wait_output("is running", SECONDS)
            scene.plane.down()
            for pod in pods:
                scene.plane.manual_kubelet.end(
                    pod, 78, termination_message(78, "found wrong", node=pod.index)
                )
            followed.wait_output("is unknown", SECONDS)
            scene.plane.up()
            assert followed.code() == 78, followed.text

    @pytest.mark.proof
    def test_a_403_of_a_restarted_server_does_not_end_the_watch(self, scene: Scene) -> None:
        """Seen on 1.36: it refuses everybody for a moment; polling alone tells the end up to 60 s late."""
        with scene.follow("away") as followed:
            pods = scene.running()
            followed.wait_output("is running", SECONDS)
            scene.plane.down()
            refused, before = 6, len(scene.plane.requests)
            scene.plane.up(refused)

            def watched_again() -> bool:
                answered = scene.plane.requests[before + refused :]
                return any(one.query.get("watch") == "true" for one in answered)

            scene.plane.wait_for(watched_again, "a watch of pods after the 403", 45)
            for pod in pods:
                scene.plane.manual_kubelet.end(pod, message=termination_message(0, node=pod.index))
            assert followed.code() == 0, followed.text


class TestList:
    @pytest.mark.proof
    def test_each_run_with_its_phase(self, scene: Scene) -> None:
        plane = scene.plane
        for name in ("done", "failed", "waiting"):
            scene.submit(name, "--max-restarts", "0")
            if name != "waiting":
                for pod in scene.running():
                    plane.manual_kubelet.end(pod, 0 if name == "done" else 9)
                plane.wait_for(lambda name=name: plane.job_result(name) != "", "its end")  # type: ignore[misc]
        plane.hold_pods("0/2 nodes are available: 2 Insufficient memory.")
        result = scene.verb("list")
        assert result.code == 0, result
        rows = {line.split()[0]: line.split()[1:4] for line in result.stdout.splitlines()[1:]}
        assert rows == {
            "done": ["done", "kubernetes", "2"],
            "failed": ["failed", "kubernetes", "2"],
            "waiting": ["pending", "kubernetes", "2"],
        }
        found = json.loads(scene.verb("list", "--json").stdout)["runs"]
        assert {run["name"]: run["exit_code"] for run in found} == {"done": 0, "failed": 9, "waiting": None}

    @pytest.mark.proof
    def test_while_the_server_is_unreachable_every_run_is_unknown_and_none_failed(self, scene: Scene) -> None:
        for name in ("one", "two", "three"):
            scene.submit(name)
        scene.plane.down()
        result = scene.verb("list")
        assert result.code == 0, result
        assert result.stdout.count("unknown") == 3


class TestStatus:
    @pytest.mark.proof
    def test_exit_code_of_a_run_that_has_none_yet(self, scene: Scene) -> None:
        scene.submit("young")
        scene.running()
        result = scene.verb("status", "young", "--exit-code")
        assert result.code == 69, result
        assert "young is running: it has no exit code" in result.stderr

    @pytest.mark.proof
    def test_as_json(self, scene: Scene) -> None:
        scene.submit("young")
        scene.running()
        found = json.loads(scene.verb("status", "young", "--json").stdout)
        assert (found["phase"], found["exit_code"], len(found["nodes_now"])) == ("running", None, 2)


class TestCancel:
    def nothing_is_left(self, plane: KubernetesCluster) -> bool:
        return not any(plane.objects(kind) for kind in (JOBS, PODS, SERVICES, CONFIG_MAPS))

    def test_of_a_job_that_waits_and_again(self, scene: Scene) -> None:
        scene.plane.hold_pods("0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")
        with scene.follow("early") as followed:
            followed.wait_output("no machine fits", SECONDS)
            result = scene.verb("cancel", "early")
            assert result.code == 0, result
            assert "early has ended: cancelled; `dist-train resume early` goes on with it" in result.stdout
            assert followed.code() == 77, followed.text
        assert self.nothing_is_left(scene.plane)
        again = scene.verb("cancel", "early")
        assert (again.code, again.stdout) == (0, "early has ended already: cancelled\n"), again
        assert scene.code("early") == 77

    @pytest.mark.proof
    def test_of_one_without_pods(self, scene: Scene) -> None:
        scene.plane.refuse_pods("exceeded quota: team")
        scene.submit("none")
        result = scene.verb("cancel", "none")
        assert (result.code, "none has ended: cancelled; " in result.stdout) == (0, True), result
        assert self.nothing_is_left(scene.plane)
        assert scene.code("none") == 77

    @pytest.mark.proof
    def test_of_one_that_has_ended_changes_nothing(self, scene: Scene) -> None:
        scene.submit("over", "--max-restarts", "0")
        for pod in scene.running():
            scene.plane.manual_kubelet.end(pod, 9)
        scene.plane.wait_job_result("Failed: PodFailurePolicy")
        result = scene.verb("cancel", "over")
        assert result.code == 0, result
        assert result.stdout.startswith("over has ended already: failed, exit code 9; its Job over"), result
        assert "`kubectl -n default delete jobs.batch over` removes them" in result.stdout
        assert scene.code("over") == 9
        assert scene.plane.objects(JOBS) != []

    @pytest.mark.proof
    def test_while_the_server_is_unreachable_it_fails(self, scene: Scene) -> None:
        scene.submit("away")
        scene.plane.down()
        result = scene.verb("cancel", "away")
        assert result.code == 69, result
        assert "cannot be reached" in result.stderr
        scene.plane.up()
        assert len(scene.plane.objects(JOBS)) == 1


class TestResume:
    @pytest.mark.proof
    def test_after_a_failure_a_new_job_replaces_it(self, scene: Scene) -> None:
        scene.submit("retry", "--max-restarts", "0")
        for pod in scene.running():
            scene.plane.manual_kubelet.end(pod, 41, termination_message(41, "not restarted"))
        scene.plane.wait_job_result("Failed: PodFailurePolicy")
        old = scene.plane.job()["metadata"]["uid"]
        assert scene.code("retry") == 41
        result = scene.verb("resume", "retry", "--detach")
        assert (result.code, result.stdout) == (0, "retry\n"), result
        assert scene.plane.job()["metadata"]["uid"] != old
        assert "pending" in scene.status("retry"), "nothing of the last start counts"
        for pod in scene.running():
            scene.plane.manual_kubelet.end(pod, message=termination_message(0, node=pod.index))
        scene.plane.wait_job_result("Complete")
        assert scene.code("retry") == 0
        done = scene.verb("resume", "retry")
        assert (done.code, "there is nothing to resume" in done.stdout) == (0, True), done

    @pytest.mark.proof
    def test_a_recorded_end_does_not_count_for_the_next_start(self, scene: Scene) -> None:
        with scene.follow("retry", "--max-restarts", "0") as followed:
            for pod in scene.running():
                scene.plane.manual_kubelet.end(pod, 41, termination_message(41, "not restarted"))
            assert followed.code() == 41, followed.text
        assert scene.verb("resume", "retry", "--detach").code == 0
        for pod in scene.running():
            scene.plane.manual_kubelet.end(pod, 139)
        scene.plane.wait_job_result("Failed: BackoffLimitExceeded")
        assert scene.code("retry") == 139

    @pytest.mark.proof
    def test_of_a_running_one_is_refused(self, scene: Scene) -> None:
        scene.submit("busy")
        scene.running()
        result = scene.verb("resume", "busy", "--detach")
        assert result.code == 78, result
        assert "busy is at work already" in result.stderr
        assert "dist-train cancel busy" in result.stderr
