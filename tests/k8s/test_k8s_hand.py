"""Fault injection of the emulated cluster: pods by hand, logs with times, Kueue, unresponsive nodes."""

from __future__ import annotations

import time
from pathlib import Path

from cluster.api.log_lines import LogLines
from cluster.harness.clients import Clients
from cluster.harness.manifests import job
from cluster.kubernetes_cluster import KubernetesCluster
from cluster.objects import JOBS, Manifest, find_condition, is_true
from cluster.operators.kueue import QUEUE, WORKLOADS


def submit(plane: KubernetesCluster, manifest: Manifest) -> None:
    plane.store.create(JOBS, "default", manifest)


def placed(plane: KubernetesCluster, count: int = 2) -> None:
    """Wait until so many pods have a node."""
    plane.wait_for(lambda: sum(bool(pod.node) for pod in plane.pods()) == count, f"{count} pods on nodes")


def uids(plane: KubernetesCluster, index: int) -> list[str]:
    return [pod.uid for pod in plane.pods() if pod.index == index]


def read_log(clients: Clients, name: str, **words: object) -> str:
    # Preloaded, this client gives the repr of bytes.
    answer = clients.core.read_namespaced_pod_log(name, "default", _preload_content=False, **words)
    return str(answer.data.decode())


class TestPodsByHand:
    def test_a_pod_waits_runs_writes_and_ends(
        self, clients: Clients, control_plane: KubernetesCluster
    ) -> None:
        submit(control_plane, job("train"))
        placed(control_plane)
        hand, pod = control_plane.manual_kubelet, control_plane.pod(0)
        hand.hold(pod, "ErrImagePull", "no such image")
        assert control_plane.pod(0).waiting == "ErrImagePull"
        hand.run(pod)
        hand.write(pod, "one", "two")
        assert control_plane.pod(0).phase == "Running"
        assert read_log(clients, pod.name) == "one\ntwo\n"
        hand.end(pod, 3, message="why")
        ended = control_plane.pod(0)
        assert (ended.phase, ended.exit_code, ended.message) == ("Failed", 3, "why")

    def test_a_deleted_pod_is_removed_when_it_ends(self, control_plane: KubernetesCluster) -> None:
        submit(control_plane, job("train", completions=1))
        placed(control_plane, 1)
        pod = control_plane.pod(0)
        control_plane.manual_kubelet.run(pod)
        control_plane.delete(pod)
        assert control_plane.phases() == ["Terminating"]
        control_plane.manual_kubelet.end(pod, 75)
        control_plane.wait_for(lambda: uids(control_plane, 0) not in ([], [pod.uid]), "a new one")


class TestLogsWithTimes:
    def test_each_whole_line_has_its_time_and_keeps_it(self, tmp_path: Path) -> None:
        path, lines = tmp_path / "log", LogLines()
        path.write_bytes(b"one\ntw")
        assert lines.read(path, 0, is_over=False)[1].endswith(b"Z one\n")
        index, first = lines.read(path, 0, is_over=False)
        assert (index, lines.read(path, 0, is_over=False)[1]) == (1, first)
        path.write_bytes(b"one\ntwo")
        assert lines.read(path, 1, is_over=True)[1].endswith(b"Z two")

    def test_since_a_whole_second(self, tmp_path: Path) -> None:
        path, lines = tmp_path / "log", LogLines()
        path.write_bytes(b"old\n")
        lines.read(path, 0, is_over=False)
        time.sleep(1.1)
        path.write_bytes(b"old\nnew\n")
        _, late_line = lines.read(path, 1, is_over=False)
        second = late_line.split(b".")[0].decode() + "Z"
        assert lines.read(path, 0, is_over=True, since=second)[1] == late_line

    def test_over_http(self, clients: Clients, control_plane: KubernetesCluster) -> None:
        submit(control_plane, job("train", completions=1))
        placed(control_plane, 1)
        pod = control_plane.pod(0)
        control_plane.manual_kubelet.run(pod)
        control_plane.manual_kubelet.write(pod, "one", "two")
        read = read_log(clients, pod.name, timestamps=True).splitlines()
        assert [line.split(" ", 1)[1] for line in read] == ["one", "two"]
        assert read[0][10] == "T"
        assert read[0].split(" ")[0].endswith("Z")


class TestTime:
    def test_a_deadline_passes(self, control_plane: KubernetesCluster) -> None:
        submit(control_plane, job("train", activeDeadlineSeconds=1000))
        placed(control_plane)
        control_plane.store.pass_time(1001)
        control_plane.wait_for(lambda: is_true(control_plane.job(), "FailureTarget"), "the deadline")
        target = find_condition(control_plane.job(), "FailureTarget")
        assert target is not None
        assert target["reason"] == "DeadlineExceeded"


class TestKueue:
    """https://kueue.sigs.k8s.io/docs/tasks/troubleshooting/troubleshooting_jobs/"""

    def submit(self, plane: KubernetesCluster, queue: str = "gold") -> None:
        plane.install("kueue")
        plane.kueue.queue("gold")
        manifest = job("train")
        manifest["metadata"]["labels"][QUEUE] = queue
        submit(plane, manifest)
        plane.wait_for(lambda: len(plane.objects(WORKLOADS)) == 1, "a workload")

    def workload(self, plane: KubernetesCluster) -> Manifest:
        (found,) = plane.objects(WORKLOADS)
        return found

    def test_a_job_waits_for_quota(self, control_plane: KubernetesCluster) -> None:
        control_plane.kueue.full = "insufficient unused quota for cpu"
        self.submit(control_plane)
        control_plane.wait_for(lambda: is_true(control_plane.job(), "Suspended"), "it is suspended")
        reserved = find_condition(self.workload(control_plane), "QuotaReserved")
        assert reserved is not None
        assert (reserved["status"], reserved["message"]) == ("False", "insufficient unused quota for cpu")
        assert control_plane.pods() == []
        control_plane.kueue.set_capacity()
        placed(control_plane)
        assert is_true(self.workload(control_plane), "Admitted")

    def test_a_missing_queue(self, control_plane: KubernetesCluster) -> None:
        self.submit(control_plane, "silver")
        reserved = find_condition(self.workload(control_plane), "QuotaReserved")
        assert reserved is not None
        assert (reserved["reason"], reserved["message"]) == (
            "Inadmissible",
            "LocalQueue silver doesn't exist",
        )

    def test_a_preempted_job_waits_again(self, control_plane: KubernetesCluster) -> None:
        self.submit(control_plane)
        placed(control_plane)
        control_plane.manual_kubelet.run(*control_plane.pods())
        control_plane.kueue.full = "no room"
        control_plane.kueue.preempt("train", "Preempted to accommodate a workload of higher priority")
        control_plane.wait_phases("Terminating", "Terminating")
        assert is_true(self.workload(control_plane), "Evicted")
        for pod in control_plane.pods():
            control_plane.manual_kubelet.end(pod, 75)
        control_plane.wait_for(lambda: not control_plane.pods(), "no pod")
        control_plane.kueue.set_capacity()
        placed(control_plane)
        assert control_plane.job()["status"].get("failed", 0) == 0

    def test_jobs_without_a_queue_are_ignored(self, control_plane: KubernetesCluster) -> None:
        control_plane.install("kueue")
        submit(control_plane, job("train"))
        placed(control_plane)
        assert control_plane.objects(WORKLOADS) == []


class TestNodes:
    def test_pods_of_an_unresponsive_node_are_not_ready_and_stay(
        self, control_plane: KubernetesCluster
    ) -> None:
        submit(control_plane, job("train"))
        placed(control_plane)
        control_plane.manual_kubelet.run(*control_plane.pods())
        lost = control_plane.pod(1)
        control_plane.silence_node(lost.node)
        found = control_plane.pod(1)
        assert "running" in found.state, "nobody is there to tell otherwise"
        assert not is_true(found.manifest, "Ready")
        assert is_true(found.manifest, "ContainersReady")
        assert control_plane.phases() == ["Running", "Running"]
        control_plane.taint_node(lost.node)
        assert control_plane.phases() == ["Running", "Terminating"]

    def test_a_drained_node_gets_no_pods(self, control_plane: KubernetesCluster) -> None:
        submit(control_plane, job("train"))
        placed(control_plane)
        control_plane.manual_kubelet.run(*control_plane.pods())
        old = control_plane.pod(1)
        control_plane.drain_node(old.node)
        condition = find_condition(control_plane.pod(1).manifest, "DisruptionTarget")
        assert condition is not None
        assert condition["reason"] == "EvictionByEvictionAPI"
        control_plane.manual_kubelet.end(old, 75)
        control_plane.wait_for(lambda: uids(control_plane, 1) not in ([], [old.uid]), "a new one")
        control_plane.wait_for(lambda: bool(control_plane.pod(1).node), "on a node")
        assert control_plane.pod(1).node == control_plane.pod(0).node
