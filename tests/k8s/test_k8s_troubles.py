"""Failures of --kind job on the command line: messages, hints and exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.api.errors import forbidden
from cluster.api.events import record_event
from cluster.api.store import Deletion
from cluster.harness.manifests import job
from cluster.harness.runs import TWO_BY_ONE, following, launch, workspace
from cluster.harness.scene import SCRIPT, Scene, termination_message
from cluster.kubernetes_cluster import KubernetesCluster
from cluster.objects import JOBS, PODS, SERVICES, Manifest, Resource
from dist_train.rundir.failure import Failure

pytestmark = pytest.mark.timeout(90)
# The deadline of messages that must be printed soon.
SECONDS = 20.0


@pytest.fixture
def scene(control_plane: KubernetesCluster, tmp_path: Path) -> Scene:
    """A folder with a script to launch; nothing runs pods."""
    workspace(control_plane, tmp_path)
    (tmp_path / "code" / SCRIPT).write_text("print('hello')\n")
    return Scene(control_plane, tmp_path)


class TestZeroPods:
    def test_pods_that_the_namespace_forbids(self, scene: Scene) -> None:
        scene.plane.enforce_restricted()
        with scene.follow("rdma", "--rdma", "yes") as followed:
            followed.wait_output("no pod could be made; FailedCreate: ", SECONDS)
            followed.wait_output('violates PodSecurity "restricted', SECONDS)
            assert "the API server warns: would violate PodSecurity" in followed.text
            assert "pod-security.kubernetes.io/enforce=privileged" in followed.text, "the hint"
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
            followed.wait_output("1 of 2 pods are there; FailedCreate: ", SECONDS)
            assert why in followed.text
            assert f"is forbidden: {why}" in scene.status("half")
            # Each try is a fresh pod, and so an event of its own; they say the same.
            scene.plane.wait_for(lambda: len(scene.plane.events("FailedCreate")) >= 3, "more events", 30)
            assert followed.text.count("FailedCreate") == 1


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
            scene.plane.manual_kubelet.run(runs)
            scene.plane.manual_kubelet.hold(waits, reason, message)
            followed.wait_output(said, SECONDS)
            assert "it will not go on by itself" in followed.text
            assert f"kubectl -n default describe pod {waits.name}" in followed.text
            status = scene.status("held")
        assert said in status
        assert f"node 0  {waits.name}  Pending" in status

    @pytest.mark.proof
    def test_a_volume_that_cannot_be_mounted(self, scene: Scene) -> None:
        with scene.follow("held") as followed:
            first, _ = scene.pods()
            scene.plane.manual_kubelet.hold(first, "ContainerCreating")
            why = 'MountVolume.SetUp failed for volume "run" : mount failed: exit status 32'
            record_event(scene.plane.store, first.manifest, "Warning", "FailedMount", why, "kubelet")
            followed.wait_output(f"its volumes and containers are being made; FailedMount: {why}", SECONDS)


class TestOutOfMemory:
    @pytest.mark.proves(
        "Out of memory names the limit and the hint",
    )
    @pytest.mark.slow
    def test_the_limit_is_named_the_gang_restarts_and_then_it_has_failed(self, scene: Scene) -> None:
        with scene.follow("hungry", "--max-restarts", "1") as followed:
            for _ in range(2):
                first, second = scene.running()
                scene.plane.manual_kubelet.end(second, 137, reason="OOMKilled")
                said = (
                    f"{second.name}: out of memory at its limit of 2Gi (OOMKilled): ask for more with --mem"
                )
                followed.wait_output(said.replace(second.name, ""), SECONDS)
                scene.plane.manual_kubelet.end(first, 79, termination_message(79, "node 1 was lost"))
            assert followed.code() == 137, followed.text
        assert "is failed: its restarts are used up; pod hungry-1-" in followed.text
        status = scene.status("hungry")
        assert "its restarts are used up" in status
        assert "out of memory at its limit of 2Gi (OOMKilled): ask for more with --mem" in status
        assert "restarts 1" in status
        assert scene.code("hungry") == 137
        assert scene.plane.job_result() == "Failed: BackoffLimitExceeded"
        again = scene.verb("resume", "hungry", "--mem", "4Gi", "--detach")
        assert again.code == 0, again
        (container,) = scene.plane.job()["spec"]["template"]["spec"]["containers"]
        assert container["resources"]["limits"]["memory"] == "4Gi"

    def test_of_one_rank_while_the_agent_lives_on(self, scene: Scene) -> None:
        """Seen on a real cluster: the kernel kills a rank, the agent writes its verdict, and ends."""
        message = "killed by SIGKILL (often the kernel's out-of-memory killer: see `dmesg`)"
        failure = Failure("rank", "signal", rank=1, node_rank=1, exit_code=137, signal=9, message=message)
        with scene.follow("hungry", "--max-restarts", "0") as followed:
            first, second = scene.running()
            found = termination_message(137, "not restarted", node=1, failure=failure)
            scene.plane.manual_kubelet.end(second, 137, found, "OOMKilled")
            scene.plane.manual_kubelet.end(
                first, 137, termination_message(137, "not restarted", 0, None, failure)
            )
            assert followed.code() == 137, followed.text
        assert f"out of memory at the limit of 2Gi of pod {second.name} (OOMKilled)" in followed.text
        assert "dmesg" not in followed.text
        assert "resume " in followed.text
        assert " --mem 4Gi" in followed.text


class TestException:
    def test_of_the_script_ends_the_job_at_once(self, scene: Scene) -> None:
        message = "ValueError: no"
        failure = Failure("rank", "exception", rank=1, node_rank=1, exit_code=1, message=message)
        with scene.follow("raises") as followed:
            for pod in scene.running():
                found = termination_message(1, "an error of the program", pod.index, None, failure)
                scene.plane.manual_kubelet.end(pod, 1, found)
            assert followed.code() == 1, followed.text
        assert scene.plane.job_result() == "Failed: PodFailurePolicy"
        indexes = [pod.index for pod in scene.plane.pods()]
        assert len(indexes) == len(set(indexes)), "none was started again"


class TestEvicted:
    @pytest.mark.proof
    def test_by_its_machine_it_costs_no_restart(self, scene: Scene) -> None:
        why = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 80Mi."
        with scene.follow("evicted", "--max-restarts", "0") as followed:
            first, second = scene.running()
            scene.plane.manual_kubelet.evict(second, why)
            followed.wait_output(f"evicted by its machine ({why})", SECONDS)
            assert f"evicted by its machine ({why})" in scene.status("evicted")
            scene.plane.manual_kubelet.end(first, 79, termination_message(79, "node 1 was lost"))
            for pod in scene.running():
                scene.plane.manual_kubelet.end(pod, message=termination_message(0, node=pod.index))
            assert followed.code() == 0, followed.text

    @pytest.mark.proof
    def test_for_its_own_disk_usage_the_option_is_named(self, scene: Scene) -> None:
        why = "Pod ephemeral local storage usage exceeds the total limit of containers 10Gi. "
        scene.submit("full", "--max-restarts", "0")
        first, second = scene.running()
        scene.plane.manual_kubelet.evict(second, why, is_disruption=False)
        scene.plane.wait_for(lambda: scene.plane.pod(0).is_terminating, "node 0 is to end")
        scene.plane.manual_kubelet.end(first, 75, termination_message(75, "saved", step=5))
        scene.plane.wait_job_result("Failed: BackoffLimitExceeded")
        status = scene.status("full")
        assert (
            f"evicted by its machine ({why}): ask for more with --resource ephemeral-storage=SIZE" in status
        )
        assert scene.code("full") == 69


class TestDeadMachine:
    @pytest.mark.proves(
        "A pod stuck on a dead machine: `status` prints the command that frees it, and its danger",
    )
    def test_it_is_named_with_the_commands_that_release_it_and_the_gang_continues(self, scene: Scene) -> None:
        with scene.follow("dead", "--max-restarts", "1") as followed:
            living, lost = scene.running()
            scene.plane.silence_node(lost.node)
            followed.wait_output(f"its machine {lost.node} does not answer", SECONDS)
            scene.plane.manual_kubelet.end(living, 79, termination_message(79, "node 1 was lost"))
            scene.plane.taint_node(lost.node)
            scene.plane.store.pass_time(100)
            followed.wait_output(f"pod {lost.name}: stuck Terminating", SECONDS)
            status = scene.status("dead")
            for command in (
                f"kubectl -n default delete node {lost.node}",
                f"kubectl -n default delete pod {lost.name} --force --grace-period=0",
            ):
                assert command in status
            assert "only if the machine is really off (else two pods of one node may run at once)" in status
            scene.plane.delete_node(lost.node)
            for pod in scene.running():
                assert pod.node != lost.node
                scene.plane.manual_kubelet.end(pod, message=termination_message(0, node=pod.index))
            assert followed.code() == 0, followed.text
        assert scene.plane.job()["status"].get("failed", 0) == 0


class TestExitCodes:
    @pytest.mark.proof
    @pytest.mark.parametrize(
        ("code", "phase"), [(2, "failed"), (76, "failed"), (77, "stopped"), (78, "failed")]
    )
    def test_fatal_codes_fail_at_once(self, scene: Scene, code: int, phase: str) -> None:
        with scene.follow("fatal", "--max-restarts", "5") as followed:
            first, second = scene.running()
            scene.plane.manual_kubelet.end(second, code, termination_message(code, "the reason", node=1))
            scene.plane.wait_for(lambda: scene.plane.pod(0).is_terminating, "node 0 is to end")
            scene.plane.manual_kubelet.end(first, code, termination_message(code, "the reason"))
            assert followed.code() == code, followed.text
        assert f"is {phase}: the reason" in followed.text
        assert scene.plane.job_result() == "Failed: PodFailurePolicy"
        assert scene.code("fatal") == code

    @pytest.mark.proof
    def test_free_restarts_are_not_counted(self, scene: Scene) -> None:
        """Saved and stopped, ended because of another node: also with no restarts."""
        scene.submit("again", "--max-restarts", "0")
        for code in (75, 79):
            for pod in scene.running():
                scene.plane.manual_kubelet.end(pod, code, termination_message(code, "because of that"))
            status = scene.status("again")
            assert "requeued" in status
        for pod in scene.running():
            scene.plane.manual_kubelet.end(pod)
        scene.plane.wait_job_result("Complete")
        assert scene.code("again") == 0

    @pytest.mark.proof
    def test_a_ranks_own_exit_code_is_that_of_the_run(self, scene: Scene) -> None:
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
                scene.plane.manual_kubelet.end(
                    pod, 41, termination_message(41, "not restarted", failure=failure)
                )
            assert followed.code() == 41, followed.text
        assert "FAILED: rank 1 (node 1, local rank 0)" in followed.text
        assert scene.code("own") == 41

    @pytest.mark.proof
    def test_an_agent_that_could_not_be_started(self, scene: Scene) -> None:
        """The image has no such Python: the runtime's message, and no verdict."""
        words = 'exec: "python": executable file not found in $PATH'
        with scene.follow("empty", "--max-restarts", "0") as followed:
            for pod in scene.running():
                scene.plane.manual_kubelet.end(pod, 128, words, "StartError")
            assert followed.code() == 78, followed.text
        assert words in followed.text


class TestTimeLimit:
    @pytest.mark.proof
    def test_at_the_limit_it_saves_and_is_not_restarted(self, scene: Scene) -> None:
        with scene.follow("long", "--time", "30:00") as followed:
            pods = scene.running()
            followed.wait_output("is running", SECONDS)
            scene.plane.wait_for(lambda: scene.pod_watches() > 0, "a watch")
            watches = scene.pod_watches()
            scene.plane.expire()  # the watch starts again: nothing else reads the termination messages
            scene.plane.wait_for(lambda: scene.pod_watches() > watches, "another watch")
            scene.plane.store.pass_time(1801)
            scene.plane.wait_phases("Terminating", "Terminating")
            for pod in pods:
                scene.plane.manual_kubelet.end(pod, 75, termination_message(75, "saved", step=12))
            assert followed.code() == 75, followed.text
        assert "its time limit ended it; not started again; saved; step 12" in followed.text
        assert "go on with: dist-train resume" in followed.text
        assert scene.code("long") == 75, "though the pods are gone, and their last words with them"

    @pytest.mark.proof
    def test_without_a_watch_of_the_pods_end(self, scene: Scene) -> None:
        scene.submit("unseen", "--time", "30:00")
        pods = scene.running()
        scene.plane.store.pass_time(1801)
        scene.plane.wait_phases("Terminating", "Terminating")
        for pod in pods:
            scene.plane.manual_kubelet.end(pod, 75, termination_message(75, "saved", step=12))
        scene.plane.wait_job_result("Failed: DeadlineExceeded")
        status = scene.status("unseen")
        assert "its time limit ended it; its pods and their termination messages are gone" in status
        assert "what it saved is on the run volume" in status
        assert "dist-train resume unseen" in status
        assert scene.code("unseen") == 143


class TestOthers:
    """Changes by others to the objects of a run."""

    @pytest.mark.proof
    def test_the_job_is_deleted_while_launch_follows(self, scene: Scene) -> None:
        with scene.follow("gone") as followed:
            pods = scene.running()
            followed.wait_output("is running", SECONDS)
            scene.plane.store.delete(JOBS, "default", "gone", Deletion(policy="Background"))
            scene.plane.wait_phases("Terminating", "Terminating")
            for pod in pods:
                scene.plane.manual_kubelet.end(pod, 75, termination_message(75, "saved", step=30))
            assert followed.code() == 77, followed.text
        assert "the cluster has nothing of it any more: deleted by hand" in followed.text
        assert "saved; step 30" in followed.text
        assert scene.code("gone") == 77
        assert "step 30" in scene.status("gone")
        assert scene.plane.objects(SERVICES) == []

    @pytest.mark.proof
    def test_the_job_is_deleted_and_its_pods_are_kept(self, scene: Scene) -> None:
        """kubectl delete --cascade=orphan: no wait without an end."""
        with scene.follow("orphans") as followed:
            pods = scene.running()
            followed.wait_output("is running", SECONDS)
            scene.plane.store.delete(JOBS, "default", "orphans", Deletion(policy="Orphan"))
            followed.wait_output("its Job was deleted, and ", SECONDS)
            for pod in pods:
                scene.plane.manual_kubelet.end(pod, message=termination_message(0, node=pod.index))
            assert followed.code() == 0, followed.text
        assert scene.code("orphans") == 0

    @pytest.mark.proof
    def test_the_name_is_taken_at_the_last_moment(self, scene: Scene) -> None:
        """Between the check and the creation; what was created by then is deleted."""
        other = job("same")
        other["metadata"]["labels"]["dist-train/run-id"] = "other-1"

        def be_quicker(resource: Resource, obj: Manifest, warn: object) -> None:
            if resource == JOBS and obj["metadata"]["labels"].get("dist-train/run-id") != "other-1":
                scene.plane.store.create(JOBS, "default", other)

        scene.plane.store.admission.append(be_quicker)
        done = launch(scene.folder, "same", *TWO_BY_ONE, SCRIPT, timeout_s=60)
        assert done.code == 78, done
        assert "Job same exists already in namespace default: it belongs to the run other-1" in done.stderr
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
        (refused,) = [text for text in texts if "hint:" in text]
        assert "same exists already in namespace default: it belongs to the run same-" in refused
        assert "give this run another --name" in refused
        assert len(scene.plane.objects(JOBS)) == 1
        assert len(scene.plane.objects(SERVICES)) == 1
        scene.pods()
