"""Submission of a plan: checks first, then exactly its bytes, in order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_bodies import Body, job, pod, running
from kubernetes_stand_ins import CLAIMS, DIGITS, JOBS, PODS, SERVICES, Api, write_kubeconfig
from slurm_stand_ins import Job as MakeSpec

from dist_train.errors import ConfigError, DistTrainError, UnavailableError
from dist_train.jobs import JobSpec, Plan, Target
from dist_train.rundir import RunDir
from launchers._kubernetes.manifest.kubernetes_options import Options
from launchers._kubernetes.runner import object_submission
from launchers.kubernetes import KubernetesLauncher

pytestmark = pytest.mark.filterwarnings("ignore:HTTPResponse:DeprecationWarning")
Make = Callable[..., Plan]
OPTIONS = Options(image="train:1", run_volume="pvc/runs", source="/", workdir="/")
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_submission, "_POLL_S", 0.02)


@pytest.fixture
def plan(job: MakeSpec, run: RunDir, launcher: KubernetesLauncher, api: Api) -> Make:
    """Two nodes; the server has a shared run volume. `plan(device="cpu")` changes the job."""
    api.put(f"{CLAIMS}/runs", claim("ReadWriteMany"))

    def make(options: Options = OPTIONS, **changes: Any) -> Plan:
        return launcher.plan(job(**{"nodes": 2, **changes}), options)

    return make


def claim(*modes: str, **status: Any) -> Body:
    return {
        "metadata": {"name": "runs"},
        "spec": {"accessModes": list(modes)},
        "status": {"phase": "Bound", "accessModes": list(modes), **status},
    }


def objects(plan: Plan) -> list[Body]:
    return list(yaml.safe_load_all(plan.file("manifests.yaml")))


def refused(call: Callable[[], object], kind: type[DistTrainError] = ConfigError) -> DistTrainError:
    with pytest.raises(kind) as caught:
        call()
    return caught.value


class TestWhatIsSent:
    def test_the_plans_bytes_in_their_order(self, launcher: KubernetesLauncher, plan: Make, api: Api) -> None:
        made = plan(config_yaml="name: digits\n", target=config_target())
        assert launcher.submit(made) == DIGITS
        assert api.bodies("POST") == objects(made)
        assert api.paths("POST") == [CONFIG_MAPS, SERVICES, JOBS]

    def test_the_job_becomes_the_owner_of_its_support_objects(
        self, launcher: KubernetesLauncher, plan: Make, api: Api
    ) -> None:
        made = plan()
        launcher.submit(made)
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "digits"}
        owner["uid"] = api.objects[f"{JOBS}/digits"]["metadata"]["uid"]
        assert api.paths("PATCH") == [f"{SERVICES}/digits"]
        assert api.bodies("PATCH") == [{"metadata": {"ownerReferences": [owner]}}]
        assert json.loads(made.file("submission.json"))["ownerReferences"] == ["Service/digits"], (
            "said in the plan"
        )

    def test_without_the_right_to_patch_there_is_a_notice_with_the_command(
        self, launcher: KubernetesLauncher, plan: Make, api: Api, capfd: pytest.CaptureFixture[str]
    ) -> None:
        api.refuse("PATCH", ".*", 403, 'User "me" cannot patch resource "services"', "Forbidden")
        assert launcher.submit(plan()) == DIGITS
        said = capfd.readouterr().err
        assert "Service digits has no owner" in said
        assert "kubectl -n default delete services -l dist-train/run-id=digits-1f" in said

    def test_the_servers_warnings_are_printed(
        self, launcher: KubernetesLauncher, plan: Make, api: Api, capfd: pytest.CaptureFixture[str]
    ) -> None:
        kept = job()
        kept["metadata"]["uid"] = "u"
        api.answer("POST", JOBS, 201, kept, {"Warning": '299 - "would violate PodSecurity"'})
        launcher.submit(plan())
        printed = capfd.readouterr()
        assert "[dist-train] the API server warns: would violate PodSecurity\n" in printed.err
        assert printed.out == ""

    def test_the_handle_keeps_a_context_that_was_given(
        self, launcher: KubernetesLauncher, plan: Make
    ) -> None:
        made = plan(OPTIONS.model_copy(update={"context": "here"}))
        handle = launcher.submit(made)
        assert handle.text == "kubernetes:job/default/digits@here"
        assert launcher.detach_output(handle) == "digits"

    def test_no_secret_value_is_anywhere(
        self, launcher: KubernetesLauncher, plan: Make, api: Api, run: RunDir, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_TOKEN", "canary-4711")
        launcher.submit(plan(secrets=("HF_TOKEN",)))
        sent = json.dumps([request.body for request in api.requests])
        assert "secretKeyRef" in sent
        assert "canary" not in sent
        assert not [p for p in run.path.rglob("*") if p.is_file() and b"canary" in p.read_bytes()]


class TestRefusedBeforeCreation:
    """Each leaves the server as it was."""

    @pytest.fixture(autouse=True)
    def _nothing_made(self, api: Api) -> Any:
        yield
        assert api.bodies("POST") == []

    def test_no_such_namespace(self, launcher: KubernetesLauncher, plan: Make) -> None:
        error = refused(lambda: launcher.submit(plan(OPTIONS.model_copy(update={"namespace": "tema"}))))
        assert "there is no namespace tema" in error.what
        assert error.exit_code == 78

    def test_no_such_volume(self, launcher: KubernetesLauncher, plan: Make) -> None:
        error = refused(lambda: launcher.submit(plan(OPTIONS.model_copy(update={"run_volume": "pvc/none"}))))
        assert "there is no PersistentVolumeClaim none in namespace default" in error.what

    @pytest.mark.parametrize("mode", ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteOncePod"])
    def test_a_volume_that_two_nodes_cannot_write(
        self, launcher: KubernetesLauncher, plan: Make, api: Api, mode: str
    ) -> None:
        made = plan()
        api.put(f"{CLAIMS}/runs", claim(mode))
        error = refused(lambda: launcher.submit(made))
        assert f"pvc/runs can be mounted by one machine alone ({mode}), and the job has 2 nodes" in error.what
        assert "ReadWriteMany" in str(error.hint)

    def test_a_lost_volume(self, launcher: KubernetesLauncher, plan: Make, api: Api) -> None:
        made = plan()
        api.put(f"{CLAIMS}/runs", claim("ReadWriteMany", phase="Lost"))
        assert "pvc/runs is lost" in refused(lambda: launcher.submit(made)).what

    def test_a_name_of_another_run(self, launcher: KubernetesLauncher, plan: Make, api: Api) -> None:
        api.put(f"{JOBS}/digits", job(run="digits-9a"))
        error = refused(lambda: launcher.submit(plan()))
        assert "Job digits exists already in namespace default" in error.what
        assert "it belongs to the run digits-9a, since 2026-11-21T10:00:00Z" in error.what
        assert "another --name" in str(error.hint)
        assert error.exit_code == 78

    def test_a_service_of_somebody_else(self, launcher: KubernetesLauncher, plan: Make, api: Api) -> None:
        api.put(f"{SERVICES}/digits", {"metadata": {"name": "digits"}})
        assert "Service digits exists already" in refused(lambda: launcher.submit(plan())).what

    def test_the_run_itself_is_running(self, launcher: KubernetesLauncher, plan: Make, api: Api) -> None:
        api.put(f"{JOBS}/digits", job())
        error = refused(lambda: launcher.submit(plan()))
        assert "is already running" in error.what
        assert api.paths("DELETE") == []

    def test_an_unreachable_api_server(
        self, launcher: KubernetesLauncher, plan: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = plan()
        write_kubeconfig(tmp_path / "config", {"here": "http://127.0.0.1:1"})
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        assert refused(lambda: launcher.submit(made), UnavailableError).exit_code == 69


def test_one_node_may_have_a_disk_of_its_own(launcher: KubernetesLauncher, plan: Make, api: Api) -> None:
    made = plan(nodes=1)
    api.put(f"{CLAIMS}/runs", claim("ReadWriteOnce"))
    assert launcher.submit(made) == DIGITS


class TestWithoutTheRightToRead:
    def test_a_namespace_that_may_not_be_read_is_not_a_missing_one(
        self, launcher: KubernetesLauncher, plan: Make, api: Api
    ) -> None:
        words = 'namespaces "default" is forbidden: User "me" cannot get resource "namespaces"'
        api.refuse("GET", "/api/v1/namespaces/default", 403, words, "Forbidden")
        assert launcher.submit(plan()) == DIGITS

    def test_a_volume_that_may_not_be_read_has_a_notice(
        self, launcher: KubernetesLauncher, plan: Make, api: Api, capfd: pytest.CaptureFixture[str]
    ) -> None:
        api.refuse("GET", CLAIMS + "/.*", 403, "cannot get resource", "Forbidden")
        assert launcher.submit(plan()) == DIGITS
        assert "whether the run volume can be shared is not known" in capfd.readouterr().err


class TestFailureDuringCreation:
    def test_what_was_created_before_a_failure_is_deleted(
        self, launcher: KubernetesLauncher, plan: Make, api: Api, run: RunDir
    ) -> None:
        api.refuse("POST", JOBS, 422, "spec.completions: Invalid value", "Invalid")
        refused(lambda: launcher.submit(plan()))
        assert f"{SERVICES}/digits" not in api.objects
        assert not run.events.exists()
        assert not (run.control / "cluster.json").exists()

    def test_a_jobset_without_jobset(self, launcher: KubernetesLauncher, plan: Make, api: Api) -> None:
        made = plan(OPTIONS.model_copy(update={"kind": "jobset"}))
        error = refused(lambda: launcher.submit(made), UnavailableError)
        assert "JobSet (https://jobset.sigs.k8s.io) is not installed" in error.what
        assert api.bodies("POST") == []

    def test_a_name_taken_in_the_meantime(self, launcher: KubernetesLauncher, plan: Make, api: Api) -> None:
        made = plan()
        usual = api.create

        def race(collection: str, body: Body) -> tuple[int, Body]:
            if collection == JOBS:
                api.put(f"{JOBS}/digits", job(run="digits-9a"))
            return usual(collection, body)

        api.create = race  # type: ignore[method-assign]
        assert "belongs to the run digits-9a" in refused(lambda: launcher.submit(made)).what
        assert f"{SERVICES}/digits" not in api.objects, "ours"
        assert f"{JOBS}/digits" in api.objects, "theirs"


class TestResume:
    """The same run again: what is left of its previous start is removed first."""

    FAILED = job(condition={"type": "Failed", "reason": "BackoffLimitExceeded"})

    def test_a_finished_job_of_the_run_is_replaced(
        self, launcher: KubernetesLauncher, plan: Make, api: Api
    ) -> None:
        made = plan()
        old = api.put(f"{JOBS}/digits", json.loads(json.dumps(self.FAILED)))
        uid = old["metadata"]["uid"]
        launcher.submit(made)
        [order] = [request for request in api.requests if request.method == "DELETE"]
        assert order.path == f"{JOBS}/digits"
        assert (order.body["propagationPolicy"], order.body["preconditions"]) == ("Foreground", {"uid": uid})
        assert api.objects[f"{JOBS}/digits"]["metadata"]["uid"] != uid

    def test_pods_of_the_previous_start_are_waited_for(
        self, launcher: KubernetesLauncher, plan: Make, api: Api, capfd: pytest.CaptureFixture[str]
    ) -> None:
        made = plan()
        head = {"deletionTimestamp": "2026-11-21T10:09:00Z", "ownerReferences": [{"uid": "u"}]}
        api.put(f"{PODS}/digits-0-x", running("digits-0-x", head=head))
        looks = iter(range(1000))
        usual = api.find

        def find(collection: str, query: dict[str, str]) -> Body:
            if collection == PODS and next(looks) == 5:
                del api.objects[f"{PODS}/digits-0-x"]
            return usual(collection, query)

        api.find = find  # type: ignore[method-assign]
        launcher.submit(made)
        assert "waiting until the run's previous start is gone: pod digits-0-x" in capfd.readouterr().err
        assert api.paths("DELETE") == [], "its owner's removal takes it"

    def test_a_pod_that_stays_is_named_with_the_command(
        self, launcher: KubernetesLauncher, plan: Make, api: Api, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(object_submission, "REMOVAL_S", 0.1)
        made = plan(grace_s=0.0)
        head = {"deletionTimestamp": "2026-11-21T00:00:00Z", "ownerReferences": [{"uid": "u"}]}
        api.put(f"{PODS}/digits-0-x", running("digits-0-x", head=head))
        error = refused(lambda: launcher.submit(made), UnavailableError)
        assert "pod digits-0-x" in error.what
        assert "stuck Terminating" in str(error.cause)
        assert error.hint == "kubectl -n default delete pod digits-0-x --force --grace-period=0"
        assert api.bodies("POST") == []

    def test_leftovers_without_an_owner_are_removed(
        self, launcher: KubernetesLauncher, plan: Make, api: Api
    ) -> None:
        left = {
            "kind": "Service",
            "metadata": {"name": "digits", "labels": {"dist-train/run-id": "digits-1f"}},
        }
        api.put(f"{SERVICES}/digits", left)
        api.put(f"{PODS}/digits-0-x", pod("digits-0-x"))
        launcher.submit(plan())
        assert sorted(api.paths("DELETE")) == [f"{PODS}/digits-0-x", f"{SERVICES}/digits"]

    def test_markers_of_the_previous_start_do_not_count(
        self, launcher: KubernetesLauncher, plan: Make, run: RunDir
    ) -> None:
        for name in ("cancel", "ended.json"):
            (run.control / name).write_text("{}")
        launcher.submit(plan())
        assert sorted(path.name for path in run.control.iterdir()) == ["cluster.json"]


class TestPlan:
    def test_it_needs_neither_cluster_nor_client(
        self, launcher: KubernetesLauncher, job: MakeSpec, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("KUBECONFIG", "/nowhere")
        for kind in ("job", "jobset", "trainjob"):
            assert launcher.plan(job(nodes=2), OPTIONS.model_copy(update={"kind": kind})).files

    def test_torchx_variables_of_this_machine_are_not_in_the_pods(
        self, launcher: KubernetesLauncher, job: MakeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = launcher.plan(job(nodes=2), OPTIONS)
        (tmp_path / ".torchxconfig").write_text("[torchx:tracker]\nmine=\n[tracker:mine]\nconfig=secret\n")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("TORCHX_PARENT_RUN_ID", "parent")
        monkeypatch.setenv("TORCHX_TRACKERS", "mine")
        assert launcher.plan(job(nodes=2), OPTIONS) == before
        assert b"TORCHX" not in before.file("manifests.yaml")

    def test_a_plan_prints_nothing(
        self, launcher: KubernetesLauncher, job: MakeSpec, capfd: pytest.CaptureFixture[str]
    ) -> None:
        for kind in ("job", "jobset", "trainjob", "volcano"):
            launcher.plan(job(nodes=2), OPTIONS.model_copy(update={"kind": kind}))
        assert capfd.readouterr() == ("", "")

    def test_the_submission_is_the_job_and_its_options_again(
        self, launcher: KubernetesLauncher, job: MakeSpec
    ) -> None:
        spec = job(nodes=2, secrets=("HF_TOKEN",))
        record = json.loads(launcher.plan(spec, OPTIONS).file("submission.json"))
        assert JobSpec.from_json(record["spec"]) == spec
        assert Options(**record["options"]) == OPTIONS


def config_target() -> Target:
    return Target("config", "/home/me/digits.yaml", (), "/home/me")
