"""Troubles of jobset, trainjob and volcano as a person meets them; pods fare as the test says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from k8s_cluster import KubernetesCluster
from k8s_jobset_children import RESTART_KEY
from k8s_kinds import FORMS, JOBSET, TRAINJOB, VOLCANO, Form, KindRun, left_of
from k8s_objects import JOBS, PODS, Manifest, Resource
from k8s_pods import Pod
from k8s_runs import TWO_BY_ONE, launch, workspace
from k8s_scene import SCRIPT, Scene, last_word
from k8s_status import forbidden
from k8s_trainjob_admission import runtime_unknown
from k8s_volcano_pods import POD_GROUPS, POLICIES
from k8s_volcano_scheduler import make_queue

pytestmark = pytest.mark.timeout(60)


def kinds(*quick: Form, of: tuple[Form, ...] = FORMS) -> pytest.MarkDecorator:
    """Each of them; make test has room for the quick ones alone."""
    found = [form if form in quick else pytest.param(form, marks=pytest.mark.proof) for form in of]
    return pytest.mark.parametrize("form", found, ids=str)


OF_JOBSETS = (JOBSET, TRAINJOB)


@pytest.fixture
def scene(control_plane: KubernetesCluster, tmp_path: Path) -> Scene:
    """A folder with a script to launch, and nobody who runs pods."""
    workspace(control_plane, tmp_path)
    (tmp_path / "code" / SCRIPT).write_text("print('hello')\n")
    return Scene(control_plane, tmp_path)


def begin(scene: Scene, form: Form, *words: object) -> KindRun:
    """The operator is there, and a run of two pods is submitted."""
    scene.plane.install(form.operator)
    scene.submit("held", "--kind", form.kind, *words)
    return KindRun(scene.plane, form, "held")


def wait_gone(scene: Scene, *pods: Pod) -> None:
    """Until these pods are no more."""
    uids = {pod.uid for pod in pods}
    scene.plane.wait_for(lambda: uids.isdisjoint(pod.uid for pod in scene.plane.pods()), f"{uids} are gone")


def end_leaving(scene: Scene, code: int) -> None:
    """Every pod that is being removed ends; one of the next start, which may be there already, does not."""
    for pod in scene.plane.pods():
        if pod.is_terminating:
            scene.plane.hand.end(pod, code)


def ended(scene: Scene, code: int) -> str:
    """What `status --exit-code` says of a run that has ended so."""
    said = scene.verb("status", "held", "--exit-code")
    assert said.code == code, said
    return said.stdout


# Restarts.


@kinds(JOBSET)
def test_a_restart_of_the_gang_is_told_and_counted(scene: Scene, form: Form) -> None:
    job = begin(scene, form, "--max-restarts", "1")
    first = scene.running()
    assert "phase      running" in scene.status("held")
    scene.plane.hand.end(job.pod(1), 137)
    scene.plane.wait_for(lambda: scene.plane.phases().count("Terminating") == 1, "the other is to go")
    end_leaving(scene, 79)
    wait_gone(scene, *first)
    scene.running()
    told = scene.status("held")
    assert "phase      running" in told
    assert told.count("Running on node-") == 2
    assert told.count("restarts 1") == 2
    scene.plane.hand.end(job.pod(0), 3)
    scene.plane.wait_for(lambda: job.end != "" or "Terminating" in scene.plane.phases(), "the end begins")
    end_leaving(scene, 79)
    scene.plane.wait_for(lambda: job.end != "", "the end")
    told = ended(scene, 3)
    assert "phase      failed" in told
    assert "its restarts are used up; pod held-" in told
    assert "exit code 3" in told


@kinds(of=OF_JOBSETS)
def test_no_pod_of_a_new_start_is_made_before_the_last_old_one_is_gone(scene: Scene, form: Form) -> None:
    job = begin(scene, form)
    first = scene.running()
    scene.plane.hand.end(job.pod(1), 137)
    scene.plane.wait_for(lambda: scene.plane.phases() == ["Terminating", "Failed"], "the other saves")
    told = scene.status("held")
    assert "is being ended: it saves and stops" in told
    assert "phase      requeued" in told
    assert {pod.uid for pod in scene.plane.pods()} == {pod.uid for pod in first}
    scene.plane.hand.end(first[0], 79)
    wait_gone(scene, *first)
    assert len(scene.pods()) == 2
    [child] = scene.plane.objects(JOBS)
    assert child["metadata"]["labels"][RESTART_KEY] == "1"


@kinds()
def test_a_fatal_exit_code_ends_it_at_once(scene: Scene, form: Form) -> None:
    job = begin(scene, form)
    first, second = scene.running()
    scene.plane.hand.end(first, 78, last_word(78, "the nodes differ: torch 2.9 on node 1"))
    scene.plane.wait_for(lambda: "Terminating" in scene.plane.phases(), "the other is to go")
    told = scene.status("held")
    scene.plane.hand.end(second, 79)
    scene.plane.wait_for(lambda: job.end != "", "the end")
    assert job.restarts == 0
    assert "the nodes differ: torch 2.9 on node 1" in ended(scene, 78)
    assert form is not VOLCANO or "none is made anew" in told


# What it waits for.


@kinds(of=OF_JOBSETS)
def test_suspended_by_kueue_until_there_is_room(scene: Scene, form: Form) -> None:
    scene.plane.install("kueue")
    scene.plane.kueue.queue("gold")
    full = "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu"
    scene.plane.kueue.full = full
    job = begin(scene, form, "--queue", "gold")
    told = scene.status("held")
    assert f"suspended in the queue gold; Kueue: {full} (Pending)" in told
    assert "kubectl -n default get workloads.kueue.x-k8s.io" in told
    assert not scene.plane.pods()
    scene.plane.kueue.room()
    for pod in scene.running():
        scene.plane.hand.end(pod, told=last_word(0, node=pod.index))
    job.wait_end("Completed")
    ended(scene, 0)


@kinds(of=OF_JOBSETS)
def test_suspended_by_hand_says_what_starts_it(scene: Scene, form: Form) -> None:
    def suspend(resource: Resource, obj: Manifest, warn: Callable[[str], None]) -> None:
        if resource == form.top:
            obj["spec"]["suspend"] = True

    scene.plane.store.admission.append(suspend)
    begin(scene, form)
    told = scene.status("held")
    assert "it is suspended, and no queue will start it" in told
    assert f'patch {form.top.name} held --type merge -p \'{{"spec":{{"suspend":false}}}}\'' in told


def test_a_podgroup_that_is_not_let_in_is_told_in_volcanos_words(scene: Scene) -> None:
    full = "queue resource quota insufficient: insufficient nvidia.com/gpu"
    scene.plane.operators.volcano_scheduler.full = full
    begin(scene, VOLCANO)
    told = scene.status("held")
    assert f"Volcano: its PodGroup is Pending in the queue default: {full}" in told
    assert "phase      pending" in told
    scene.plane.operators.volcano_scheduler.full = ""
    scene.plane.store.poke()
    scene.running()
    assert "phase      running" in scene.status("held")


@pytest.mark.proof
def test_a_gang_that_no_machines_fit_is_told(scene: Scene) -> None:
    why = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    scene.plane.operators.volcano_scheduler.hold = why
    begin(scene, VOLCANO)
    scene.plane.wait_for(lambda: bool(scene.plane.events("FailedScheduling")), "the refusal")
    [group] = scene.plane.objects(POD_GROUPS)
    assert group["status"]["phase"] == "Inqueue"
    told = scene.status("held")
    assert f"pod held-trainer-0-0 and 1 more: no machine fits: {why}" in told


@kinds(TRAINJOB)
def test_one_of_two_pods_is_refused(scene: Scene, form: Form) -> None:
    def admit(resource: Resource, obj: Manifest, warn: Callable[[str], None]) -> None:
        if resource == PODS and scene.plane.pods():
            raise forbidden(PODS, obj["metadata"]["name"], "exceeded quota: team")

    scene.plane.store.admission.append(admit)
    begin(scene, form)
    scene.plane.wait_for(lambda: any("quota" in said for said in scene.plane.events()), "the refusal")
    told = scene.status("held")
    assert "1 of 2 pods are there; FailedCreate" in told
    assert "exceeded quota: team" in told


# Refusals.


@kinds(*FORMS)
def test_without_its_operator_it_is_refused(scene: Scene, form: Form) -> None:
    done = launch(scene.folder, "lost", "--kind", form.kind, *TWO_BY_ONE, SCRIPT, timeout_s=30)
    assert done.code == 69, done
    assert "is not installed on http://127.0.0.1" in done.stderr
    assert "`--kind job` needs nothing installed" in done.stderr
    assert nothing_is_left(scene)


@pytest.mark.parametrize(
    "may_look", [True, pytest.param(False, marks=pytest.mark.proof)], ids=["seen", "by the webhook"]
)
def test_a_volcano_queue_that_is_not_there(scene: Scene, may_look: bool) -> None:
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
def test_a_queue_that_nobody_could_look_for_is_asked_about(scene: Scene) -> None:
    """Without a right to read queues, on a Volcano without its webhook."""
    scene.plane.forbid("get", "queues")
    scene.plane.install("volcano")
    scene.plane.store.admission.pop()
    scene.submit("held", "--kind", "volcano", "--queue", "silver")
    assert "Volcano has not begun with it; is there a queue silver?" in scene.status("held")


@pytest.mark.proof
def test_a_closed_volcano_queue_is_refused_in_its_words(scene: Scene) -> None:
    scene.plane.install("volcano")
    make_queue(scene.plane.store, "old", "Closed")
    words = ("--kind", "volcano", "--queue", "old", *TWO_BY_ONE, SCRIPT)
    done = launch(scene.folder, "lost", *words, timeout_s=30)
    assert done.code == 78, done
    assert "queue `old` status is `Closed`" in done.stderr
    assert nothing_is_left(scene)


def test_trainers_webhook_may_be_a_moment_behind(scene: Scene) -> None:
    """Its cache has not seen the TrainingRuntime that was made just before."""
    scene.plane.fail("create", "trainjobs", runtime_unknown("held"), times=2)
    begin(scene, TRAINJOB)
    assert len(scene.pods()) == 2
    assert len(scene.plane.sent("POST", "trainjobs")) == 3


def nothing_is_left(scene: Scene) -> bool:
    """Neither there nor here."""
    return not left_of(scene.plane) and not (scene.folder / "code" / "runs" / "lost").exists()


# Ends.


@kinds(of=OF_JOBSETS)
def test_a_time_limit_is_told_also_when_the_pods_are_gone(scene: Scene, form: Form) -> None:
    job = begin(scene, form, "--time", "0:02")
    first = scene.running()
    scene.plane.wait_for(lambda: scene.plane.phases() == ["Terminating"] * 2, "the time is over", within_s=10)
    for pod in first:
        scene.plane.hand.end(pod, 75, last_word(75, "saved", node=pod.index, step=20))
    scene.plane.wait_for(lambda: job.end != "" and not scene.plane.pods(), "the end")
    assert "its time limit ended it" in ended(scene, 143)


@pytest.mark.proof
def test_an_aborted_vcjob_is_stopped_and_resumed(scene: Scene) -> None:
    """`vcctl job suspend`."""
    job = begin(scene, VOLCANO)
    first = scene.running()
    scene.plane.operators.volcano.command("held", "AbortJob")
    scene.plane.wait_phases("Terminating", "Terminating")
    for pod in first:
        scene.plane.hand.end(pod, 75, last_word(75, "saved", step=20))
    scene.plane.wait_for(lambda: job.end == "Aborted", "the end")
    ended(scene, 77)
    resumed = scene.verb("resume", "held", "--detach")
    assert resumed.code == 0, resumed
    scene.running()
    assert "phase      running" in scene.status("held")


def test_the_network_policy_outlives_a_restart_of_volcanos(scene: Scene) -> None:
    """Volcano's own, of the job's name, goes with each restart, and lets everything out."""
    job = begin(scene, VOLCANO, "--network-policy", "yes")
    first = scene.running()
    scene.plane.hand.end(job.pod(1), 137)
    scene.plane.wait_for(lambda: scene.plane.phases().count("Terminating") == 1, "the other is to go")
    end_leaving(scene, 79)
    wait_gone(scene, *first)
    scene.running()
    ours = [body for body in scene.plane.objects(POLICIES) if "Egress" in body["spec"]["policyTypes"]]
    assert [body["metadata"]["name"] for body in ours] == ["held-pods"]


@kinds()
def test_cancel_of_one_that_waits_removes_everything(scene: Scene, form: Form) -> None:
    scene.plane.hold_pods("0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")
    scene.plane.operators.volcano_scheduler.hold = scene.plane.scheduler.hold
    begin(scene, form)
    scene.plane.wait_for(lambda: len(scene.plane.pods()) == 2, "two pods")
    listed = scene.verb("list")
    assert "held  pending  kubernetes" in listed.stdout, listed
    for said in ("held has ended: cancelled", "held has ended already: cancelled"):
        done = scene.verb("cancel", "held")
        assert (done.code, said in done.stdout) == (0, True), done
    scene.plane.wait_for(lambda: not left_of(scene.plane), "nothing of it")
    ended(scene, 77)
