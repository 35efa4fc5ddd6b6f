"""--queue on the command line: quota, wrong queues, Kueue that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.harness.runs import TWO_BY_ONE, launch, workspace
from cluster.harness.scene import SCRIPT, Scene, termination_message
from cluster.kubernetes_cluster import KubernetesCluster
from cluster.objects import JOBS, SERVICES

pytestmark = pytest.mark.timeout(90)
# The deadline of messages that must be printed soon.
SECONDS = 20.0


@pytest.fixture
def scene(control_plane: KubernetesCluster, tmp_path: Path) -> Scene:
    """A folder with a script to launch; nothing runs pods."""
    workspace(control_plane, tmp_path)
    (tmp_path / "code" / SCRIPT).write_text("print('hello')\n")
    return Scene(control_plane, tmp_path)


class TestQueues:
    """--queue: Kueue suspends the Job until there is quota."""

    @pytest.fixture(autouse=True)
    def _kueue(self, control_plane: KubernetesCluster) -> None:
        control_plane.install("kueue")
        control_plane.kueue.queue("gold")

    @pytest.mark.proves(
        "Waiting for a quota is reported in Kueue's words; a wrong queue is refused",
    )
    def test_waiting_is_shown_with_kueues_message_until_it_is_admitted(self, scene: Scene) -> None:
        full = "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu"
        scene.plane.kueue.full = full
        with scene.follow("queued", "--queue", "gold") as followed:
            followed.wait_output(f"pending: suspended in the queue gold; Kueue: {full}", SECONDS)
            assert "kubectl -n default get workloads.kueue.x-k8s.io" in followed.text
            assert f"suspended in the queue gold; Kueue: {full} (Pending)" in scene.status("queued")
            scene.plane.kueue.set_capacity()
            for pod in scene.running():
                scene.plane.manual_kubelet.end(pod, message=termination_message(0, node=pod.index))
            assert followed.code() == 0, followed.text

    def test_a_queue_of_cores_and_memory_alone_admits_the_default_pods(self, scene: Scene) -> None:
        """Most ClusterQueues cover no ephemeral-storage; what is asked for beyond them has a hint."""
        scene.plane.kueue.covered = ("cpu", "memory")
        scene.submit("fits", "--queue", "gold")
        scene.running()
        scene.submit("large", "--queue", "gold", "--resource", "ephemeral-storage=2Gi")
        status = scene.status("large")
        assert "resource ephemeral-storage unavailable in ClusterQueue (NoMatchingFlavor)" in status
        assert "launch it again with --resource ephemeral-storage=none" in status

    @pytest.mark.proof
    def test_preemption_by_kueue_is_shown_and_costs_no_restart(self, scene: Scene) -> None:
        scene.submit("poor", "--queue", "gold", "--max-restarts", "0")
        first = scene.running()
        scene.plane.kueue.full = "insufficient unused quota"
        scene.plane.kueue.preempt("poor", "Preempted to accommodate a workload (UID: 5) due to priority")
        scene.plane.wait_phases("Terminating", "Terminating")
        for pod in first:
            scene.plane.manual_kubelet.end(pod, 75, termination_message(75, "saved", step=20))
        scene.plane.wait_for(lambda: not scene.plane.pods(), "no pod")
        status = scene.status("poor")
        assert "suspended in the queue gold; Kueue: " in status
        assert "Preempted to accommodate a workload (UID: 5) due to priority" in status
        scene.plane.kueue.set_capacity()
        for pod in scene.running():
            scene.plane.manual_kubelet.end(pod)
        scene.plane.wait_job_result("Complete")
        assert scene.code("poor") == 0

    @pytest.mark.proves(
        "Waiting for a quota is reported in Kueue's words; a wrong queue is refused",
    )
    @pytest.mark.proof
    def test_a_missing_queue_is_refused_and_the_others_are_named(self, scene: Scene) -> None:
        done = launch(scene.folder, "lost", "--queue", "silver", *TWO_BY_ONE, SCRIPT, timeout_s=60)
        assert done.code == 78, done
        assert "there is no LocalQueue silver in namespace default" in done.stderr
        assert "cause: its LocalQueues: gold" in done.stderr
        assert "kubectl -n default get localqueues.kueue.x-k8s.io" in done.stderr
        assert not any(scene.plane.objects(kind) for kind in (JOBS, SERVICES))
        assert not (scene.folder / "code" / "runs" / "lost").exists()

    @pytest.mark.proof
    def test_without_the_right_to_read_queues_kueues_message_is_shown(self, scene: Scene) -> None:
        scene.plane.forbid("get", "localqueues")
        with scene.follow("lost", "--queue", "silver") as followed:
            followed.wait_output("Kueue: LocalQueue silver doesn't exist (Inadmissible)", SECONDS)
            assert "LocalQueue silver doesn't exist" in scene.status("lost")


@pytest.mark.proof
def test_a_queue_without_kueue_is_refused(scene: Scene) -> None:
    done = launch(scene.folder, "lost", "--queue", "gold", *TWO_BY_ONE, SCRIPT, timeout_s=60)
    assert done.code == 69, done
    assert "Kueue is not installed" in done.stderr
    assert "hint:  drop --queue" in done.stderr
    assert scene.plane.objects(JOBS) == []
