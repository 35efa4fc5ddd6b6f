"""The status of a job: from the object, its pods, their agents' verdicts, events and queues."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from kubernetes_bodies import Body, ended, event, job, pod, running, verdict
from kubernetes_stand_ins import EVENTS, JOBS, PODS, Api
from kubernetes_statuses import DIGITS, FAILED, seen, waiting

from dist_train.rundir.failure import Failure
from launchers._kubernetes.api.cluster import Cluster
from launchers._kubernetes.state.job_object import read_job_object
from launchers._kubernetes.state.job_snapshot import JobSnapshot, take_snapshot
from launchers._kubernetes.state.job_status import JobStatus, status_of
from launchers._kubernetes.state.pods import read_pod

pytestmark = pytest.mark.filterwarnings("ignore:HTTPResponse:DeprecationWarning")
QUEUE = "kueue.x-k8s.io/queue-name"
RUN = "digits-1f"
FAILURE = {
    "source": "rank",
    "class": "exit",
    "rank": 3,
    "local_rank": 1,
    "node_rank": 1,
    "host": "gpu-2",
    "pid": 9,
    "exit_code": 41,
    "message": "ended with exit code 41",
}


def unschedulable(name: str, message: str, reason: str = "Unschedulable") -> Body:
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return pod(name, conditions=[condition])


class TestActive:
    def test_all_pods_run(self) -> None:
        found = seen(job(), running("a", 0), running("b", 1, host="gpu-2")).state
        assert (found.phase, found.source, found.detail) == ("running", "API server", "on gpu-1, gpu-2")
        assert found.nodes == (
            "node 0  a  Running on gpu-1, restarts 0",
            "node 1  b  Running on gpu-2, restarts 0",
        )
        assert found.exit_code is None

    def test_a_tag_that_means_two_images(self) -> None:
        """Each node's line has its own; a line about them only where they differ."""
        ids = [f"docker.io/library/train@sha256:{digit * 64}" for digit in "ab"]
        pods = [running(name, node, image_id=ids[node]) for node, name in enumerate("xy")]
        first, second, third = seen(job(), *pods).state.nodes
        assert ("image aaaaaaaaaaaa," in first, "image bbbbbbbbbbbb," in second) == (True, True)
        assert third.startswith("the nodes run different images, all called train:1: launch by digest")
        same = [running(name, node, image_id=ids[0]) for node, name in enumerate("xy")]
        assert len(seen(job(), *same).state.nodes) == 2

    def test_an_image_that_cannot_be_pulled(self) -> None:
        held = waiting("a", "ImagePullBackOff", 'Back-off pulling image "train:1"', node=1)
        found = seen(job(), waiting("b", "ContainerCreating"), held).state
        assert found.phase == "pending"
        assert (
            'pod a and 1 more: its image train:1 cannot be pulled (Back-off pulling image "train:1")'
            in found.detail
        )
        assert "it will not go on by itself" in found.detail
        assert found.next == ("kubectl --context here -n default describe pod a",)

    def test_no_machine_fits_with_the_schedulers_message(self) -> None:
        words = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
        found = seen(job(spec={"parallelism": 1}), unschedulable("a", words)).state
        assert (found.phase, found.detail) == ("pending", f"pod a: no machine fits: {words}")

    def test_a_scheduling_gate(self) -> None:
        held = unschedulable("a", "Scheduling is blocked", "SchedulingGated")
        assert "held by a scheduling gate" in seen(job(spec={"parallelism": 1}), held).state.detail

    def test_one_runs_and_one_waits(self) -> None:
        found = seen(
            job(), running("a", 0), waiting("b", "CreateContainerConfigError", 'secret "hf" not found', 1)
        )
        assert found.state.phase == "running", "its agents wait for each other"
        assert 'pod b: its container cannot be set up (secret "hf" not found)' in found.state.detail

    def test_fewer_pods_than_requested_with_the_reason(self) -> None:
        note = "FailedCreate: pods is forbidden: exceeded quota"
        found = seen(job(), running("a", 0), notes=(note,)).state
        assert found.detail == f"1 of 2 pods are there; {note}"

    def test_no_pods(self) -> None:
        found = seen(job(), notes=("FailedCreate: violates PodSecurity",)).state
        assert (found.phase, found.detail) == (
            "pending",
            "no pod could be made; FailedCreate: violates PodSecurity",
        )
        assert found.next == ("kubectl --context here -n default describe jobs.batch digits",)

    def test_no_pods_and_no_reason_yet(self) -> None:
        assert seen(job()).state.detail == "its pods are not there yet"

    def test_pods_that_were_recreated(self) -> None:
        gone = {"head": {"creationTimestamp": "2026-11-21T09:00:00Z"}, "finished": "2026-11-21T09:30:00Z"}
        first, lost = ended("a1", 0, 79, verdict(79, "node 1 was lost"), **gone), ended("b1", 1, 137, **gone)
        found = seen(job(), first, lost, waiting("a2", "ContainerCreating")).state
        assert found.phase == "requeued"
        assert "pod a2: its volumes and containers are being made" in found.detail
        assert found.nodes[0].startswith("node 0  a2  Pending on gpu-1, restarts 1: ")
        assert "node 1  b1  Failed on gpu-1, restarts 0: exit code 137" in found.nodes[1]

    def test_between_an_end_and_the_next_start(self) -> None:
        found = seen(job(), ended("a", 0, 79, verdict(79, "node 1 was lost")), ended("b", 1, 137)).state
        assert found.phase == "requeued"
        assert found.detail == "pod a and 1 more: exit code 79; node 1 was lost; its pods are recreated"

    def test_agents_that_are_done_before_the_controller_knows(self) -> None:
        assert seen(job(), ended("a", 0), ended("b", 1)).state.phase == "running"

    def test_a_sidecar_that_runs_after_the_agent(self) -> None:
        body = ended("a", 0)
        body["status"]["phase"] = "Running"
        body["status"]["containerStatuses"].append({"name": "istio-proxy", "state": {"running": {}}})
        found = seen(job(spec={"parallelism": 1}), body).state
        assert found.phase == "running"
        assert "its agent is done, but its container istio-proxy still runs" in found.detail

    def test_an_agent_behind_another_container_is_found_by_its_environment(self) -> None:
        body = running("a", 0)
        body["spec"]["containers"].insert(0, {"name": "linkerd-proxy", "image": "proxy"})
        body["status"]["containerStatuses"].insert(0, {"name": "linkerd-proxy", "state": {"waiting": {}}})
        assert read_pod(body).container.running


class TestTerminating:
    def stuck(self, **more: Any) -> Body:
        return running("a", 0, head={"deletionTimestamp": "2026-11-21T10:05:00Z"}, **more)

    def test_stuck_on_a_dead_machine(self) -> None:
        found = seen(job(), self.stuck(), running("b", 1)).state
        assert "pod a: stuck Terminating: its grace ended 300 s ago" in found.detail
        assert "gpu-1 does not answer" in found.detail
        assert "only if the machine is really off" in found.detail
        force = "kubectl --context here -n default delete pod a --force --grace-period=0"
        assert found.next == ("kubectl --context here -n default delete node gpu-1", force)
        assert found.nodes[0].startswith("node 0  a  Terminating on gpu-1")

    def test_within_its_grace_it_saves(self) -> None:
        soon = running("a", 0, head={"deletionTimestamp": "2026-11-21T10:10:20Z"})
        found = seen(job(), soon, running("b", 1)).state
        assert found.detail == "pod a: is being ended: it saves and stops; its pods are recreated"
        assert found.next == ()

    def test_a_job_that_is_being_removed_is_running_until_it_is_gone(self) -> None:
        found = seen(job(head={"deletionTimestamp": "2026-11-21T10:09:00Z"}), self.stuck()).state
        assert found.phase == "running"
        assert found.detail.startswith("it is being removed; a not gone yet; pod a: stuck Terminating")
        assert "--force" in found.next[0], "then force is enough"

    def test_pods_without_their_job_too(self) -> None:
        assert seen(None, self.stuck()).state.phase == "running"

    def test_no_objects_have_no_status(self) -> None:
        snapshot = JobSnapshot(None, (), (), datetime.now(UTC))
        assert status_of(DIGITS, snapshot) is None


class TestEnded:
    def test_done(self) -> None:
        found = seen(job(condition={"type": "Complete"}), ended("a", 0, 0, verdict(0)), ended("b", 1))
        assert (found.state.phase, found.state.exit_code) == ("done", 0)

    def test_the_code_is_that_of_pod_0s_verdict(self) -> None:
        found = verdict(41, "not restarted", step=7, attempt=2, failure=FAILURE)
        found = seen(job(condition=FAILED), ended("a", 0, 41, found), ended("b", 1, 41, found))
        assert (found.state.phase, found.state.exit_code) == ("failed", 41)
        assert found.state.detail == (
            "its restarts are used up; rank 3 (node 1, local rank 1) on gpu-2, pid 9: "
            "ended with exit code 41; not restarted; step 7"
        )
        assert found.verdict is not None
        assert found.verdict.failure is not None
        assert (found.verdict.failure.rank, found.verdict.attempt) == (3, 2)

    def test_a_ranks_own_code_that_kubernetes_has_as_1(self) -> None:
        assert seen(job(condition=FAILED), ended("a", 0, 1, verdict(77))).state.exit_code == 77

    def test_the_newest_start_counts(self) -> None:
        old = {"head": {"creationTimestamp": "2026-11-21T09:00:00Z"}, "finished": "2026-11-21T09:30:00Z"}
        pods = [ended("a1", 0, 137, verdict(137, "old"), **old), ended("a2", 0, 78, verdict(78, "new"))]
        assert seen(job(condition=FAILED), *pods).state.exit_code == 78
        assert seen(job(condition=FAILED), *reversed(pods)).state.exit_code == 78

    def test_where_pod_0_of_the_newest_start_is_deleted_another_verdict_counts(self) -> None:
        # A Job that fails deletes the pods that still run, and with them their objects.
        old = {"head": {"creationTimestamp": "2026-11-21T09:00:00Z"}, "finished": "2026-11-21T09:30:00Z"}
        pods = [
            ended("a1", 0, 137, verdict(137, "old"), **old),
            ended("b2", 1, 78, verdict(78, "new", node=1)),
        ]
        assert seen(job(condition=FAILED), *pods).state.exit_code == 78

    def test_a_watch_keeps_deleted_pods(self) -> None:
        limit = {"type": "Failed", "reason": "DeadlineExceeded"}
        found = ended("a", 0, 75, verdict(75, "saved", step=12))
        found = seen(job(condition=limit), gone=(found,)).state
        assert (found.phase, found.exit_code) == ("stopped", 75)
        assert found.detail == "its time limit ended it; not started again; saved; step 12"

    def test_a_script_that_sigterm_ended_is_stopped_where_that_was_asked_for(self) -> None:
        asked = seen(job(condition=FAILED), ended("a", 0, 143, verdict(143, "stopped; the script")))
        assert (asked.state.phase, asked.state.exit_code) == ("stopped", 143)
        of_rank = Failure(source="rank", cls="signal", rank=0, exit_code=143, message="SIGTERM").to_record()
        failed = seen(job(condition=FAILED), ended("a", 0, 143, verdict(143, "x", failure=of_rank)))
        assert (failed.state.phase, failed.state.exit_code) == ("failed", 143)

    def test_a_time_limit_without_a_verdict(self) -> None:
        found = seen(job(condition={"type": "Failed", "reason": "DeadlineExceeded"})).state
        assert (found.phase, found.exit_code) == ("failed", 143)
        assert found.detail.startswith(
            "its time limit ended it; its pods and their termination messages are gone"
        )

    def test_out_of_memory_has_no_verdict(self) -> None:
        killed = ended("b", 1, 1, reason="OOMKilled")  # 1: not the agent, but a process of it was killed
        found = seen(job(condition=FAILED), ended("a", 0, 79, verdict(79, "node 1 was lost")), killed).state
        assert found.exit_code == 137
        assert "pod b (node 1): out of memory (OOMKilled): ask for more with --mem" in found.detail

    def test_evicted(self) -> None:
        status = {"reason": "Evicted", "message": "The node was low on resource: memory."}
        found = seen(job(condition=FAILED), ended("a", 0, 137, status=status)).state
        assert found.exit_code == 69
        assert "evicted by its machine (The node was low on resource: memory.)" in found.detail

    def test_a_command_that_could_not_be_started(self) -> None:
        words = 'exec: "python3.9": executable file not found in $PATH'
        found = seen(job(condition=FAILED), ended("a", 0, 128, words, reason="StartError")).state
        assert (found.exit_code, words in found.detail) == (78, True)

    def test_only_the_machines_code(self) -> None:
        found = seen(job(condition=FAILED), ended("a", 0, 139, "Segmentation fault\nlast line\n")).state
        assert found.exit_code == 139
        assert "exit code 139; no verdict; its last line: last line" in found.detail

    def test_a_notice_of_the_agent_is_not_the_last_line(self) -> None:
        """An agent that is killed while it works leaves what it has printed at its start."""
        notice = "[dist-train digits-0] waits for node 1\n"
        found = seen(job(condition=FAILED), ended("a", 0, 137, f"epoch 3\n{notice}")).state
        assert "no verdict; its last line: epoch 3" in found.detail
        found = seen(job(condition=FAILED), ended("a", 0, 137, notice)).state
        assert "exit code 137; no verdict, and no line of the ranks" in found.detail

    def test_all_secondary_failures_without_a_root_cause(self) -> None:
        found = seen(job(condition=FAILED), ended("a", 0, 79, verdict(79, "node 1 was lost"))).state
        assert found.exit_code == 69
        assert "node 1 was lost" in found.detail

    def test_no_pod_is_left(self) -> None:
        found = seen(job(condition=FAILED)).state
        assert (found.phase, found.exit_code) == ("failed", 69)
        assert found.next == ("kubectl --context here -n default describe jobs.batch digits",)


class TestOtherKinds:
    def test_a_jobset(self) -> None:
        spec = {"replicatedJobs": [{"name": "node", "template": {"spec": {"parallelism": 3}}}]}
        condition = {"type": "Completed", "status": "True"}
        body = {"kind": "JobSet", "metadata": {"name": "a"}, "spec": spec, "status": {"restarts": 2}}
        top = read_job_object("jobset", body)
        assert (top.stage, top.size, top.restarts) == ("active", 3, 2)
        done = read_job_object("jobset", {**body, "status": {"conditions": [condition]}})
        assert (done.stage, done.finished) == ("complete", True)

    @pytest.mark.parametrize(
        ("phase", "stage"),
        [
            ("Pending", "active"),
            ("Running", "active"),
            ("Restarting", "active"),
            ("Completed", "complete"),
            ("Failed", "failed"),
            ("Terminated", "failed"),
            ("Aborted", "aborted"),
        ],
    )
    def test_a_volcano_job(self, phase: str, stage: str) -> None:
        status = {"state": {"phase": phase, "reason": "r"}, "retryCount": 1}
        spec = {"queue": "gpu", "tasks": [{"replicas": 1}, {"replicas": 1}]}
        top = read_job_object(
            "volcano", {"kind": "Job", "metadata": {"name": "a"}, "spec": spec, "status": status}
        )
        assert (top.stage, top.restarts, top.queue, top.size) == (stage, 1, "gpu", 2)

    def test_a_trainjob(self) -> None:
        body = {"kind": "TrainJob", "metadata": {}, "spec": {"trainer": {"numNodes": 2}, "suspend": True}}
        assert (read_job_object("trainjob", body).stage, read_job_object("trainjob", body).size) == (
            "suspended",
            2,
        )

    def test_a_volcano_pod_knows_its_number_by_its_environment(self) -> None:
        body = running("a", 0)
        del body["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]
        body["spec"]["containers"][0]["env"].append({"name": "DIST_TRAIN_NODE_RANK", "value": "3"})
        assert read_pod(body).node == 3


class TestSnapshot:
    """Which requests are sent: events only where the pods have no reason."""

    @pytest.fixture
    def cluster(self, api: Api) -> Cluster:
        return Cluster.open(None, "default")

    def take_snapshot(self, cluster: Cluster) -> JobStatus:
        found = status_of(DIGITS, take_snapshot(cluster, DIGITS, RUN))
        assert found is not None
        return found

    def test_no_events_are_read_where_all_pods_run(self, api: Api, cluster: Cluster) -> None:
        api.put(f"{JOBS}/digits", job())
        for body in (running("a", 0), running("b", 1), running("x", 0, run="another")):
            api.put(f"{PODS}/{body['metadata']['name']}", body)
        assert self.take_snapshot(cluster).state.detail == "on gpu-1"
        assert EVENTS not in api.paths("GET")

    def test_zero_pods_events_of_this_job_since_its_creation(self, api: Api, cluster: Cluster) -> None:
        top = api.put(f"{JOBS}/digits", job())
        api.put(
            f"{EVENTS}/1",
            event(top, "FailedCreate", "forbidden: violates PodSecurity", "2026-11-21T10:01:00Z"),
        )
        api.put(f"{EVENTS}/2", event(top, "FailedCreate", "of its predecessor", "2026-11-21T08:00:00Z"))
        other = {"metadata": {"name": "digits2"}}
        api.put(f"{EVENTS}/3", event(other, "FailedCreate", "of another", "2026-11-21T10:09:00Z"))
        for path in (f"{EVENTS}/2", f"{EVENTS}/1", f"{EVENTS}/3"):
            api.objects[path]["metadata"]["creationTimestamp"] = "2026-11-21T08:00:00Z"
        assert self.take_snapshot(cluster).state.detail == (
            "no pod could be made; FailedCreate: forbidden: violates PodSecurity"
        )
        [request] = [request for request in api.requests if request.path == EVENTS]
        assert request.query["fieldSelector"] == "type=Warning"

    def test_events_of_a_child_job(self, api: Api, cluster: Cluster) -> None:
        top = api.put(f"{JOBS}/digits", job())
        child = {"metadata": {"name": "digits-node-0"}}
        api.put(f"{EVENTS}/1", event(child, "FailedCreate", "quota"))
        assert top["metadata"]["name"] == "digits"
        assert "FailedCreate: quota" in self.take_snapshot(cluster).state.detail

    def test_a_volume_that_cannot_be_mounted_is_only_in_events(self, api: Api, cluster: Cluster) -> None:
        api.put(f"{JOBS}/digits", job(spec={"parallelism": 1}))
        held = api.put(f"{PODS}/a", waiting("a", "ContainerCreating"))
        api.put(f"{EVENTS}/1", event(held, "FailedMount", "timed out waiting for NFS", kind="Pod"))
        assert "FailedMount: timed out waiting for NFS" in self.take_snapshot(cluster).state.detail

    def test_without_the_right_to_read_events(self, api: Api, cluster: Cluster) -> None:
        api.put(f"{JOBS}/digits", job())
        api.refuse("GET", EVENTS, 403, 'User "me" cannot list resource "events"', "Forbidden")
        assert (
            "the reason is not known: you have no right to list events"
            in self.take_snapshot(cluster).state.detail
        )

    def test_suspended_in_a_queue_with_the_workloads_message(self, api: Api, cluster: Cluster) -> None:
        top = job(spec={"suspend": True}, head={"labels": {"dist-train/run-id": RUN, QUEUE: "gold"}})
        uid = api.put(f"{JOBS}/digits", top)["metadata"]["uid"]
        workloads = "/apis/kueue.x-k8s.io/v1beta1/namespaces/default/workloads"
        api.installed.append("/apis/kueue.x-k8s.io/v1beta1/")  # an old Kueue: v1beta2 is not there
        condition = {"type": "QuotaReserved", "status": "False", "reason": "Pending"}
        for name, owner, words in (
            ("w1", uid, "insufficient quota for nvidia.com/gpu"),
            ("w2", "x", "not ours"),
        ):
            api.put(
                f"{workloads}/{name}",
                {
                    "metadata": {"name": name, "ownerReferences": [{"uid": owner}]},
                    "status": {"conditions": [{**condition, "message": words}]},
                },
            )
        found = self.take_snapshot(cluster).state
        assert found.phase == "pending"
        assert found.detail == (
            "suspended in the queue gold; Kueue: insufficient quota for nvidia.com/gpu (Pending)"
        )

    def test_a_queue_without_kueue(self, api: Api, cluster: Cluster) -> None:
        top = job(spec={"suspend": True}, head={"labels": {"dist-train/run-id": RUN, QUEUE: "gold"}})
        api.put(f"{JOBS}/digits", top)
        assert "Kueue is not installed here" in self.take_snapshot(cluster).state.detail

    def test_suspended_by_hand(self, api: Api, cluster: Cluster) -> None:
        api.put(f"{JOBS}/digits", job(spec={"suspend": True}))
        found = self.take_snapshot(cluster).state
        assert found.detail == "it is suspended, and no queue will start it"
        assert '\'{"spec":{"suspend":false}}\'' in found.next[0]
