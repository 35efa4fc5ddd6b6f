"""Failures of jobset, trainjob and volcano as the command line shows them; the test sets the pods' state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.api.errors import forbidden
from cluster.harness.job_kinds import (
    JOB_KINDS,
    JOBSET,
    TRAINJOB,
    VOLCANO,
    JobKind,
    KindRun,
    remaining_objects,
)
from cluster.harness.runs import TWO_BY_ONE, launch, workspace
from cluster.harness.scene import SCRIPT, Scene, termination_message
from cluster.kubernetes_cluster import KubernetesCluster
from cluster.objects import JOBS, PODS, Manifest, Resource
from cluster.operators.jobset_children import RESTART_KEY
from cluster.operators.trainjob_admission import runtime_unknown
from cluster.operators.volcano_pods import POD_GROUPS, POLICIES
from cluster.operators.volcano_scheduler import make_queue
from cluster.pod import Pod

pytestmark = pytest.mark.timeout(60)


def kinds(*quick: JobKind, of: tuple[JobKind, ...] = JOB_KINDS) -> pytest.MarkDecorator:
    """Each of them; make test runs only the fast ones."""
    found = [kind if kind in quick else pytest.param(kind, marks=pytest.mark.proof) for kind in of]
    return pytest.mark.parametrize("kind", found, ids=str)


OF_JOBSETS = (JOBSET, TRAINJOB)


@pytest.fixture
def scene(control_plane: KubernetesCluster, tmp_path: Path) -> Scene:
    """A folder with a script to launch; nothing runs pods."""
    workspace(control_plane, tmp_path)
    (tmp_path / "code" / SCRIPT).write_text("print('hello')\n")
    return Scene(control_plane, tmp_path)


def submit_kind(scene: Scene, kind: JobKind, *words: object) -> KindRun:
    """The operator is installed, and a run of two pods is submitted."""
    scene.plane.install(kind.operator)
    scene.submit("held", "--kind", kind.kind, *words)
    return KindRun(scene.plane, kind, "held")


def wait_gone(scene: Scene, *pods: Pod) -> None:
    """Wait until these pods are gone."""
    uids = {pod.uid for pod in pods}
    scene.plane.wait_for(lambda: uids.isdisjoint(pod.uid for pod in scene.plane.pods()), f"{uids} are gone")


def end_leaving(scene: Scene, code: int) -> None:
    """End every pod that is being removed; not those of the next start, which may exist already."""
    for pod in scene.plane.pods():
        if pod.is_terminating:
            scene.plane.manual_kubelet.end(pod, code)


def ended(scene: Scene, code: int) -> str:
    """The output of `status --exit-code` for a run that has ended so."""
    said = scene.verb("status", "held", "--exit-code")
    assert said.code == code, said
    return said.stdout


# Restarts.


@kinds(JOBSET)
def test_a_restart_of_the_gang_is_shown_and_counted(scene: Scene, kind: JobKind) -> None:
    job = submit_kind(scene, kind, "--max-restarts", "1")
    first = scene.running()
    assert "phase      running" in scene.status("held")
    scene.plane.manual_kubelet.end(job.pod(1), 137)
    scene.plane.wait_for(lambda: scene.plane.phases().count("Terminating") == 1, "the other is to go")
    end_leaving(scene, 79)
    wait_gone(scene, *first)
    scene.running()
    status = scene.status("held")
    assert "phase      running" in status
    assert status.count("Running on node-") == 2
    assert status.count("restarts 1") == 2
    scene.plane.manual_kubelet.end(job.pod(0), 139)
    scene.plane.wait_for(lambda: job.end != "" or "Terminating" in scene.plane.phases(), "the end begins")
    end_leaving(scene, 79)
    scene.plane.wait_for(lambda: job.end != "", "the end")
    status = ended(scene, 139)
    assert "phase      failed" in status
    assert "its restarts are used up; pod held-" in status
    assert "exit code 139" in status


@kinds(of=OF_JOBSETS)
def test_new_pods_are_created_only_after_the_old_ones_are_gone(scene: Scene, kind: JobKind) -> None:
    job = submit_kind(scene, kind)
    first = scene.running()
    scene.plane.manual_kubelet.end(job.pod(1), 137)
    scene.plane.wait_for(lambda: scene.plane.phases() == ["Terminating", "Failed"], "the other saves")
    status = scene.status("held")
    assert "is being ended: it saves and stops" in status
    assert "phase      requeued" in status
    assert {pod.uid for pod in scene.plane.pods()} == {pod.uid for pod in first}
    scene.plane.manual_kubelet.end(first[0], 79)
    wait_gone(scene, *first)
    assert len(scene.pods()) == 2
    [child] = scene.plane.objects(JOBS)
    assert child["metadata"]["labels"][RESTART_KEY] == "1"


@kinds()
def test_a_fatal_exit_code_ends_it_at_once(scene: Scene, kind: JobKind) -> None:
    job = submit_kind(scene, kind)
    first, second = scene.running()
    scene.plane.manual_kubelet.end(
        first, 78, termination_message(78, "the nodes differ: torch 2.9 on node 1")
    )
    scene.plane.wait_for(lambda: "Terminating" in scene.plane.phases(), "the other is to go")
    status = scene.status("held")
    scene.plane.manual_kubelet.end(second, 79)
    scene.plane.wait_for(lambda: job.end != "", "the end")
    assert job.restarts == 0
    assert "the nodes differ: torch 2.9 on node 1" in ended(scene, 78)
    assert kind is not VOLCANO or "none is recreated" in status


# What it waits for.


@kinds(of=OF_JOBSETS)
def test_suspended_by_kueue_until_there_is_quota(scene: Scene, kind: JobKind) -> None:
    scene.plane.install("kueue")
    scene.plane.kueue.queue("gold")
    full = "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu"
    scene.plane.kueue.full = full
    job = submit_kind(scene, kind, "--queue", "gold")
    status = scene.status("held")
    assert f"suspended in the queue gold; Kueue: {full} (Pending)" in status
    assert "kubectl -n default get workloads.kueue.x-k8s.io" in status
    assert not scene.plane.pods()
    scene.plane.kueue.set_capacity()
    for pod in scene.running():
        scene.plane.manual_kubelet.end(pod, message=termination_message(0, node=pod.index))
    job.wait_end("Completed")
    ended(scene, 0)


@kinds(of=OF_JOBSETS)
def test_suspended_by_hand_shows_the_command_that_starts_it(scene: Scene, kind: JobKind) -> None:
    def suspend(resource: Resource, obj: Manifest, warn: Callable[[str], None]) -> None:
        if resource == kind.top:
            obj["spec"]["suspend"] = True

    scene.plane.store.admission.append(suspend)
    submit_kind(scene, kind)
    status = scene.status("held")
    assert "it is suspended, and no queue will start it" in status
    assert f'patch {kind.top.name} held --type merge -p \'{{"spec":{{"suspend":false}}}}\'' in status


def test_a_podgroup_that_is_not_admitted_is_shown_with_volcanos_message(scene: Scene) -> None:
    full = "queue resource quota insufficient: insufficient nvidia.com/gpu"
    scene.plane.operators.volcano_scheduler.full = full
    submit_kind(scene, VOLCANO)
    status = scene.status("held")
    assert f"Volcano: its PodGroup is Pending in the queue default: {full}" in status
    assert "phase      pending" in status
    scene.plane.operators.volcano_scheduler.full = ""
    scene.plane.store.poke()
    scene.running()
    assert "phase      running" in scene.status("held")


@pytest.mark.proof
def test_a_gang_that_fits_no_machines_is_shown(scene: Scene) -> None:
    why = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    scene.plane.operators.volcano_scheduler.hold = why
    submit_kind(scene, VOLCANO)
    scene.plane.wait_for(lambda: bool(scene.plane.events("FailedScheduling")), "the refusal")
    [group] = scene.plane.objects(POD_GROUPS)
    assert group["status"]["phase"] == "Inqueue"
    status = scene.status("held")
    assert f"pod held-trainer-0 and 1 more: no machine fits: {why}" in status


@kinds(TRAINJOB)
def test_one_of_two_pods_is_refused(scene: Scene, kind: JobKind) -> None:
    def admit(resource: Resource, obj: Manifest, warn: Callable[[str], None]) -> None:
        if resource == PODS and scene.plane.pods():
            raise forbidden(PODS, obj["metadata"]["name"], "exceeded quota: team")

    scene.plane.store.admission.append(admit)
    submit_kind(scene, kind)
    scene.plane.wait_for(lambda: any("quota" in said for said in scene.plane.events()), "the refusal")
    status = scene.status("held")
    assert "1 of 2 pods are there; FailedCreate" in status
    assert "exceeded quota: team" in status


# Refusals.


@kinds(*JOB_KINDS)
def test_without_its_operator_it_is_refused(scene: Scene, kind: JobKind) -> None:
    done = launch(scene.folder, "lost", "--kind", kind.kind, *TWO_BY_ONE, SCRIPT, timeout_s=30)
    assert done.code == 69, done
    assert "is not installed on http://127.0.0.1" in done.stderr
    assert "`--kind job` needs nothing installed" in done.stderr
    assert nothing_is_left(scene)


@pytest.mark.parametrize(
    "may_look", [True, pytest.param(False, marks=pytest.mark.proof)], ids=["seen", "by the webhook"]
)
def test_a_missing_volcano_queue(scene: Scene, may_look: bool) -> None:
    scene.plane.install("volcano")
    if not may_look:
        scene.plane.forbid("get", "queues")
    words = ("--kind", "volcano", "--queue", "silver", *TWO_BY_ONE, SCRIPT)
    done = launch(scene.folder, "lost", *words, timeout_s=30)
    assert done.code == 78, done
    said = (
        "there is no Volcano queue silver" if may_look else 'queue.scheduling.volcano.sh "silver" not found'
    )
    assert said in done.stderr
    assert nothing_is_left(scene)


@pytest.mark.proof
def test_a_queue_that_could_not_be_read_is_in_the_status(scene: Scene) -> None:
    """Without a right to read queues, on a Volcano without its webhook."""
    scene.plane.forbid("get", "queues")
    scene.plane.install("volcano")
    scene.plane.store.admission.pop()
    scene.submit("held", "--kind", "volcano", "--queue", "silver")
    assert "Volcano has not started it; is there a queue silver?" in scene.status("held")


@pytest.mark.proof
def test_a_closed_volcano_queue_is_refused_with_its_message(scene: Scene) -> None:
    scene.plane.install("volcano")
    make_queue(scene.plane.store, "old", "Closed")
    words = ("--kind", "volcano", "--queue", "old", *TWO_BY_ONE, SCRIPT)
    done = launch(scene.folder, "lost", *words, timeout_s=30)
    assert done.code == 78, done
    assert "queue `old` status is `Closed`" in done.stderr
    assert nothing_is_left(scene)


def test_trainers_webhook_may_have_an_outdated_cache(scene: Scene) -> None:
    """Its cache may lack the TrainingRuntime that was created just before."""
    scene.plane.fail("create", "trainjobs", runtime_unknown("held"), times=2)
    submit_kind(scene, TRAINJOB)
    assert len(scene.pods()) == 2
    assert len(scene.plane.sent("POST", "trainjobs")) == 3


def nothing_is_left(scene: Scene) -> bool:
    """Neither in the cluster nor in the run directory."""
    return not remaining_objects(scene.plane) and not (scene.folder / "code" / "runs" / "lost").exists()


# Ends.


@kinds(of=OF_JOBSETS)
def test_a_time_limit_is_shown_also_when_the_pods_are_gone(scene: Scene, kind: JobKind) -> None:
    job = submit_kind(scene, kind, "--time", "0:02")
    first = scene.running()
    scene.plane.wait_for(lambda: scene.plane.phases() == ["Terminating"] * 2, "the time is over", within_s=10)
    for pod in first:
        scene.plane.manual_kubelet.end(pod, 75, termination_message(75, "saved", node=pod.index, step=20))
    scene.plane.wait_for(lambda: job.end != "" and not scene.plane.pods(), "the end")
    assert "its time limit ended it" in ended(scene, 143)


@pytest.mark.proof
def test_an_aborted_vcjob_is_stopped_and_resumed(scene: Scene) -> None:
    """`vcctl job suspend`."""
    job = submit_kind(scene, VOLCANO)
    first = scene.running()
    scene.plane.operators.volcano.command("held", "AbortJob")
    scene.plane.wait_phases("Terminating", "Terminating")
    for pod in first:
        scene.plane.manual_kubelet.end(pod, 75, termination_message(75, "saved", step=20))
    scene.plane.wait_for(lambda: job.end == "Aborted", "the end")
    ended(scene, 77)
    resumed = scene.verb("resume", "held", "--detach")
    assert resumed.code == 0, resumed
    scene.running()
    assert "phase      running" in scene.status("held")


def test_the_network_policy_remains_after_a_restart_by_volcano(scene: Scene) -> None:
    """Volcano deletes its own, of the job's name, with each restart; that one allows all egress."""
    job = submit_kind(scene, VOLCANO, "--network-policy", "yes")
    first = scene.running()
    scene.plane.manual_kubelet.end(job.pod(1), 137)
    scene.plane.wait_for(lambda: scene.plane.phases().count("Terminating") == 1, "the other is to go")
    end_leaving(scene, 79)
    wait_gone(scene, *first)
    scene.running()
    ours = [body for body in scene.plane.objects(POLICIES) if "Egress" in body["spec"]["policyTypes"]]
    assert [body["metadata"]["name"] for body in ours] == ["held-pods"]


@kinds()
def test_cancel_of_one_that_waits_removes_everything(scene: Scene, kind: JobKind) -> None:
    scene.plane.hold_pods("0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")
    scene.plane.operators.volcano_scheduler.hold = scene.plane.scheduler.hold
    submit_kind(scene, kind)
    scene.plane.wait_for(lambda: len(scene.plane.pods()) == 2, "two pods")
    listed = scene.verb("list")
    assert "held  pending  kubernetes" in listed.stdout, listed
    for said in ("held has ended: cancelled", "held has ended already: cancelled"):
        done = scene.verb("cancel", "held")
        assert (done.code, said in done.stdout) == (0, True), done
    scene.plane.wait_for(lambda: not remaining_objects(scene.plane), "nothing of it")
    ended(scene, 77)
