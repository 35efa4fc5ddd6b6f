"""Troubles of --kind job as a person meets them: what the command line says, proposes and ends with."""

from __future__ import annotations

from pathlib import Path

import pytest
from k8s_cluster import KubernetesCluster
from k8s_events import tell
from k8s_manifests import job
from k8s_objects import JOBS, PODS, SERVICES, Manifest, Resource
from k8s_runs import TWO_BY_ONE, following, launch, workspace
from k8s_scene import SCRIPT, Scene, last_word
from k8s_status import forbidden
from k8s_store import Deletion

from dist_train.rundir.failure import Failure

pytestmark = pytest.mark.timeout(90)
# What a person must hear soon is heard within this.
SECONDS = 20.0


@pytest.fixture
def scene(control_plane: KubernetesCluster, tmp_path: Path) -> Scene:
    """A folder with a script to launch, and nobody who runs pods."""
    workspace(control_plane, tmp_path)
    (tmp_path / "code" / SCRIPT).write_text("print('hello')\n")
    return Scene(control_plane, tmp_path)


class TestQueues:
    """--queue: Kueue suspends the Job until there is room."""

    @pytest.fixture(autouse=True)
    def _kueue(self, control_plane: KubernetesCluster) -> None:
        control_plane.install("kueue")
        control_plane.kueue.queue("gold")

    def test_waiting_is_told_in_kueues_words_until_it_is_admitted(self, scene: Scene) -> None:
        full = "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu"
        scene.plane.kueue.full = full
        with scene.follow("queued", "--queue", "gold") as followed:
            followed.wait_said(f"pending: suspended in the queue gold; Kueue: {full}", SECONDS)
            assert "kubectl -n default get workloads.kueue.x-k8s.io" in followed.text
            assert f"suspended in the queue gold; Kueue: {full} (Pending)" in scene.status("queued")
            scene.plane.kueue.room()
            for pod in scene.running():
                scene.plane.hand.end(pod, told=last_word(0, node=pod.index))
            assert followed.code() == 0, followed.text

    @pytest.mark.proof
    def test_giving_way_is_told_and_costs_no_restart(self, scene: Scene) -> None:
        scene.submit("poor", "--queue", "gold", "--max-restarts", "0")
        first = scene.running()
        scene.plane.kueue.full = "insufficient unused quota"
        scene.plane.kueue.preempt("poor", "Preempted to accommodate a workload (UID: 5) due to priority")
        scene.plane.wait_phases("Terminating", "Terminating")
        for pod in first:
            scene.plane.hand.end(pod, 75, last_word(75, "saved", step=20))
        scene.plane.wait_for(lambda: not scene.plane.pods(), "no pod")
        told = scene.status("poor")
        assert "suspended in the queue gold; Kueue: " in told
        assert "Preempted to accommodate a workload (UID: 5) due to priority" in told
        scene.plane.kueue.room()
        for pod in scene.running():
            scene.plane.hand.end(pod)
        scene.plane.wait_verdict("Complete")
        assert scene.code("poor") == 0

    @pytest.mark.proof
    def test_a_queue_that_is_not_there_is_refused_and_the_others_are_named(self, scene: Scene) -> None:
        done = launch(scene.folder, "lost", "--queue", "silver", *TWO_BY_ONE, SCRIPT, timeout_s=60)
        assert done.code == 78, done
        assert "there is no LocalQueue silver in namespace default" in done.stderr
        assert "cause: its LocalQueues: gold" in done.stderr
        assert "kubectl -n default get localqueues.kueue.x-k8s.io" in done.stderr
        assert not any(scene.plane.objects(kind) for kind in (JOBS, SERVICES))
        assert not (scene.folder / "code" / "runs" / "lost").exists()

    @pytest.mark.proof
    def test_who_may_not_read_queues_hears_it_of_kueue_within_seconds(self, scene: Scene) -> None:
        scene.plane.forbid("get", "localqueues")
        with scene.follow("lost", "--queue", "silver") as followed:
            followed.wait_said("Kueue: LocalQueue silver doesn't exist (Inadmissible)", SECONDS)
            assert "LocalQueue silver doesn't exist" in scene.status("lost")


@pytest.mark.proof
def test_a_queue_where_there_is_no_kueue_is_refused(scene: Scene) -> None:
    done = launch(scene.folder, "lost", "--queue", "gold", *TWO_BY_ONE, SCRIPT, timeout_s=60)
    assert done.code == 69, done
    assert "Kueue is not installed" in done.stderr
    assert "mend:  drop --queue" in done.stderr
    assert scene.plane.objects(JOBS) == []


class TestZeroPods:
    def test_pods_that_the_namespace_forbids(self, scene: Scene) -> None:
        scene.plane.enforce_restricted()
        with scene.follow("rdma", "--rdma", "yes") as followed:
            followed.wait_said("no pod could be made; FailedCreate: ", SECONDS)
            followed.wait_said('violates PodSecurity "restricted', SECONDS)
            assert "the API server warns: would violate PodSecurity" in followed.text
            assert "pod-security.kubernetes.io/enforce=privileged" in followed.text, "the mend"
            assert "kubectl -n default describe jobs.batch rdma" in followed.text
            assert 'violates PodSecurity "restricted' in scene.status("rdma")

    @pytest.mark.proof
    def test_a_quota_for_some_of_the_pods(self, scene: Scene) -> None:
        why = "exceeded quota: team, requested: pods=1, used: pods=1, limited: pods=1"

        def one_alone(resource: Resource, obj: Manifest, warn: object) -> None:
            if resource == PODS and scene.plane.pods():
                raise forbidden(PODS, obj["metadata"]["name"], why)

        scene.plane.store.admission.append(one_alone)
        with scene.follow("half") as followed:
            followed.wait_said("1 of 2 pods are there; FailedCreate: ", SECONDS)
            assert why in followed.text
            assert f"is forbidden: {why}" in scene.status("half")


class TestPodsThatCannotStart:
    @pytest.mark.proof
    @pytest.mark.parametrize(
        ("reason", "message", "said"),
        [
            ("InvalidImageName", 'couldn\'t parse image "A:b:c"', "is not the name of an image"),
            ("ErrImagePull", "pull access denied", "cannot be pulled (pull access denied)"),
            (
                "CreateContainerConfigError",
                'secret "hf" not found',
                'cannot be set up (secret "hf" not found)',
            ),
            ("RunContainerError", "exec: no such file", "cannot be started (exec: no such file)"),
        ],
    )
    def test_is_named_within_seconds(self, scene: Scene, reason: str, message: str, said: str) -> None:
        with scene.follow("held") as followed:
            waits, runs = scene.pods()
            scene.plane.hand.run(runs)
            scene.plane.hand.hold(waits, reason, message)
            followed.wait_said(said, SECONDS)
            assert "it will not go on by itself" in followed.text
            assert f"kubectl -n default describe pod {waits.name}" in followed.text
            told = scene.status("held")
        assert said in told
        assert f"node 0  {waits.name}  Pending" in told

    @pytest.mark.proof
    def test_a_volume_that_cannot_be_mounted(self, scene: Scene) -> None:
        with scene.follow("held") as followed:
            first, _ = scene.pods()
            scene.plane.hand.hold(first, "ContainerCreating")
            why = 'MountVolume.SetUp failed for volume "run" : mount failed: exit status 32'
            tell(scene.plane.store, first.manifest, "Warning", "FailedMount", why, "kubelet")
            followed.wait_said(f"its volumes and containers are being made; FailedMount: {why}", SECONDS)


class TestOutOfMemory:
    def test_the_limit_is_named_the_gang_restarts_and_then_it_has_failed(self, scene: Scene) -> None:
        with scene.follow("hungry", "--max-restarts", "1") as followed:
            for _ in range(2):
                first, second = scene.running()
                scene.plane.hand.end(second, 137, reason="OOMKilled")
                said = (
                    f"{second.name}: out of memory at its limit of 2Gi (OOMKilled): ask for more with --mem"
                )
                followed.wait_said(said.replace(second.name, ""), SECONDS)
                scene.plane.hand.end(first, 79, last_word(79, "node 1 was lost"))
            assert followed.code() == 137, followed.text
        assert "is failed: its restarts are used up; pod hungry-1-" in followed.text
        told = scene.status("hungry")
        assert "its restarts are used up" in told
        assert "out of memory at its limit of 2Gi (OOMKilled): ask for more with --mem" in told
        assert "restarts 1" in told
        assert scene.code("hungry") == 137
        assert scene.plane.verdict() == "Failed: BackoffLimitExceeded"
        again = scene.verb("resume", "hungry", "--mem", "4Gi", "--detach")
        assert again.code == 0, again
        (container,) = scene.plane.job()["spec"]["template"]["spec"]["containers"]
        assert container["resources"]["limits"]["memory"] == "4Gi"


class TestEvicted:
    @pytest.mark.proof
    def test_by_its_machine_it_costs_no_restart(self, scene: Scene) -> None:
        why = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 80Mi."
        with scene.follow("evicted", "--max-restarts", "0") as followed:
            first, second = scene.running()
            scene.plane.hand.evict(second, why)
            followed.wait_said(f"evicted by its machine ({why})", SECONDS)
            assert f"evicted by its machine ({why})" in scene.status("evicted")
            scene.plane.hand.end(first, 79, last_word(79, "node 1 was lost"))
            for pod in scene.running():
                scene.plane.hand.end(pod, told=last_word(0, node=pod.index))
            assert followed.code() == 0, followed.text

    @pytest.mark.proof
    def test_for_its_own_use_of_the_disk_it_is_told_what_to_ask_for(self, scene: Scene) -> None:
        why = "Pod ephemeral local storage usage exceeds the total limit of containers 10Gi. "
        scene.submit("full", "--max-restarts", "0")
        first, second = scene.running()
        scene.plane.hand.evict(second, why, is_disruption=False)
        scene.plane.wait_for(lambda: scene.plane.pod(0).is_terminating, "node 0 is to end")
        scene.plane.hand.end(first, 75, last_word(75, "saved", step=5))
        scene.plane.wait_verdict("Failed: BackoffLimitExceeded")
        told = scene.status("full")
        assert f"evicted by its machine ({why}): ask for more with --resource ephemeral-storage=SIZE" in told
        assert scene.code("full") == 69


class TestDeadMachine:
    def test_it_is_named_with_what_frees_it_and_the_gang_goes_on(self, scene: Scene) -> None:
        with scene.follow("dead", "--max-restarts", "1") as followed:
            living, lost = scene.running()
            scene.plane.silence_node(lost.node)
            followed.wait_said(f"its machine {lost.node} does not answer", SECONDS)
            scene.plane.hand.end(living, 79, last_word(79, "node 1 was lost"))
            scene.plane.taint_node(lost.node)
            scene.plane.store.pass_time(100)
            followed.wait_said(f"pod {lost.name}: stuck Terminating", SECONDS)
            told = scene.status("dead")
            for command in (
                f"kubectl -n default delete node {lost.node}",
                f"kubectl -n default delete pod {lost.name} --force --grace-period=0",
            ):
                assert command in told
            assert "only if the machine is really off (else two pods of one node may run at once)" in told
            scene.plane.delete_node(lost.node)
            for pod in scene.running():
                assert pod.node != lost.node
                scene.plane.hand.end(pod, told=last_word(0, node=pod.index))
            assert followed.code() == 0, followed.text
        assert scene.plane.job()["status"].get("failed", 0) == 0


class TestExitCodes:
    @pytest.mark.proof
    @pytest.mark.parametrize(
        ("code", "phase"), [(2, "failed"), (76, "failed"), (77, "stopped"), (78, "failed")]
    )
    def test_what_no_restart_helps_fails_at_once(self, scene: Scene, code: int, phase: str) -> None:
        with scene.follow("fatal", "--max-restarts", "5") as followed:
            first, second = scene.running()
            scene.plane.hand.end(second, code, last_word(code, "the reason", node=1))
            scene.plane.wait_for(lambda: scene.plane.pod(0).is_terminating, "node 0 is to end")
            scene.plane.hand.end(first, code, last_word(code, "the reason"))
            assert followed.code() == code, followed.text
        assert f"is {phase}: the reason" in followed.text
        assert scene.plane.verdict() == "Failed: PodFailurePolicy"
        assert scene.code("fatal") == code

    @pytest.mark.proof
    def test_what_costs_nothing_is_not_counted(self, scene: Scene) -> None:
        """Saved and stopped, ended because of another node: also with no restarts."""
        scene.submit("again", "--max-restarts", "0")
        for code in (75, 79):
            for pod in scene.running():
                scene.plane.hand.end(pod, code, last_word(code, "because of that"))
            told = scene.status("again")
            assert "requeued" in told
        for pod in scene.running():
            scene.plane.hand.end(pod)
        scene.plane.wait_verdict("Complete")
        assert scene.code("again") == 0

    @pytest.mark.proof
    def test_a_rank_s_own_code_is_the_runs(self, scene: Scene) -> None:
        failure = Failure(
            source="rank",
            cls="exit",
            rank=1,
            local_rank=0,
            node_rank=1,
            host="h",
            exit_code=41,
            message="why",
        )
        with scene.follow("own", "--max-restarts", "0") as followed:
            for pod in scene.running():
                scene.plane.hand.end(pod, 41, last_word(41, "not restarted", failure=failure))
            assert followed.code() == 41, followed.text
        assert "FAILED: rank 1 (node 1, local rank 0)" in followed.text
        assert scene.code("own") == 41

    @pytest.mark.proof
    def test_an_agent_that_could_not_be_started(self, scene: Scene) -> None:
        """The image has no such Python: the runtime's words, and nobody to tell a verdict."""
        words = 'exec: "python": executable file not found in $PATH'
        with scene.follow("empty", "--max-restarts", "0") as followed:
            for pod in scene.running():
                scene.plane.hand.end(pod, 128, words, "StartError")
            assert followed.code() == 78, followed.text
        assert words in followed.text


class TestTimeLimit:
    @pytest.mark.proof
    def test_reached_it_is_saved_and_not_started_again(self, scene: Scene) -> None:
        with scene.follow("long", "--time", "30:00") as followed:
            pods = scene.running()
            followed.wait_said("is running", SECONDS)
            scene.plane.wait_for(lambda: scene.pod_watches() > 0, "a watch")
            watches = scene.pod_watches()
            scene.plane.expire()  # the watch begins anew: nobody else sees the pods' last words
            scene.plane.wait_for(lambda: scene.pod_watches() > watches, "another watch")
            scene.plane.store.pass_time(1801)
            scene.plane.wait_phases("Terminating", "Terminating")
            for pod in pods:
                scene.plane.hand.end(pod, 75, last_word(75, "saved", step=12))
            assert followed.code() == 75, followed.text
        assert "its time limit ended it; saved, and not started again; saved; step 12" in followed.text
        assert "go on with: dist-train resume" in followed.text
        assert scene.code("long") == 75, "though the pods are gone, and their last words with them"

    @pytest.mark.proof
    def test_where_nobody_has_seen_the_pods_end(self, scene: Scene) -> None:
        scene.submit("unseen", "--time", "30:00")
        pods = scene.running()
        scene.plane.store.pass_time(1801)
        scene.plane.wait_phases("Terminating", "Terminating")
        for pod in pods:
            scene.plane.hand.end(pod, 75, last_word(75, "saved", step=12))
        scene.plane.wait_verdict("Failed: DeadlineExceeded")
        told = scene.status("unseen")
        assert "its time limit ended it; its pods are gone" in told
        assert "what it saved is on the run volume" in told
        assert "dist-train resume unseen" in told
        assert scene.code("unseen") == 143


class TestOthers:
    """What somebody else does to the objects of a run."""

    @pytest.mark.proof
    def test_the_job_is_deleted_while_launch_follows(self, scene: Scene) -> None:
        with scene.follow("gone") as followed:
            pods = scene.running()
            followed.wait_said("is running", SECONDS)
            scene.plane.store.delete(JOBS, "default", "gone", Deletion(policy="Background"))
            scene.plane.wait_phases("Terminating", "Terminating")
            for pod in pods:
                scene.plane.hand.end(pod, 75, last_word(75, "saved", step=30))
            assert followed.code() == 77, followed.text
        assert "the cluster has nothing of it any more: deleted by hand" in followed.text
        assert "saved; step 30" in followed.text
        assert scene.code("gone") == 77
        assert "step 30" in scene.status("gone")
        assert scene.plane.objects(SERVICES) == []

    @pytest.mark.proof
    def test_the_job_is_deleted_and_its_pods_are_kept(self, scene: Scene) -> None:
        """kubectl delete --cascade=orphan: nobody waits for ever."""
        with scene.follow("orphans") as followed:
            pods = scene.running()
            followed.wait_said("is running", SECONDS)
            scene.plane.store.delete(JOBS, "default", "orphans", Deletion(policy="Orphan"))
            followed.wait_said("its Job was deleted, and ", SECONDS)
            for pod in pods:
                scene.plane.hand.end(pod, told=last_word(0, node=pod.index))
            assert followed.code() == 0, followed.text
        assert scene.code("orphans") == 0

    @pytest.mark.proof
    def test_somebody_takes_the_name_in_the_last_moment(self, scene: Scene) -> None:
        """Between the look whether it is free and the creation; what was made by then goes again."""
        other = job("same")
        other["metadata"]["labels"]["dist-train/run-id"] = "other-1"

        def be_quicker(resource: Resource, obj: Manifest, warn: object) -> None:
            if resource == JOBS and obj["metadata"]["labels"].get("dist-train/run-id") != "other-1":
                scene.plane.store.create(JOBS, "default", other)

        scene.plane.store.admission.append(be_quicker)
        done = launch(scene.folder, "same", *TWO_BY_ONE, SCRIPT, timeout_s=60)
        assert done.code == 78, done
        assert "Job same is there already in namespace default: it belongs to the run other-1" in done.stderr
        assert [found["metadata"]["name"] for found in scene.plane.objects(JOBS)] == ["same"]
        assert scene.plane.objects(SERVICES) == []

    def test_two_launches_of_one_name_at_once(self, scene: Scene) -> None:
        (scene.folder / "b").mkdir()
        workspace(scene.plane, scene.folder / "b")
        (scene.folder / "b" / "code" / SCRIPT).write_text("print('hello')\n")
        words = ("--detach", *TWO_BY_ONE, SCRIPT)
        with (
            following(scene.folder, "same", *words) as one,
            following(scene.folder / "b", "same", *words) as two,
        ):
            codes = sorted([one.wait(30), two.wait(30)])
        texts = [(folder / "out.txt").read_text() for folder in (scene.folder, scene.folder / "b")]
        assert codes == [0, 78], texts
        (refused,) = [text for text in texts if "mend:" in text]
        assert "same is there already in namespace default: it belongs to the run same-" in refused
        assert "give this run another --name" in refused
        assert len(scene.plane.objects(JOBS)) == 1
        assert len(scene.plane.objects(SERVICES)) == 1
        scene.pods()
