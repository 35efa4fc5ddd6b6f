"""The launcher's verbs over real HTTP: state, cancel, and the same by TorchX's Runner."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import yaml
from kubernetes_bodies import job as job_body
from kubernetes_bodies import running
from kubernetes_stand_ins import (
    CLAIMS,
    DIGITS,
    JOBS,
    PODS,
    SERVICES,
    Api,
    Log,
    put,
    set_job,
    write_kubeconfig,
)
from slurm_stand_ins import Job

from dist_train.errors import UnavailableError
from dist_train.jobs import JobHandle
from dist_train.jobs import polling as pace_module
from dist_train.rundir import RunDir
from dist_train.rundir.attempt_lines import begin_line
from launchers.kubernetes import KubernetesLauncher

pytestmark = pytest.mark.filterwarnings("ignore:HTTPResponse:DeprecationWarning")
FAILED = {"type": "Failed", "reason": "BackoffLimitExceeded"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace_module, "FIRST_S", 0.05)


class TestState:
    def test_queries_become_less_frequent(
        self, api: Api, submitted: RunDir, launcher: KubernetesLauncher
    ) -> None:
        put(api, running("a", 0), running("b", 1))
        for _ in range(50):
            assert launcher.state(DIGITS, str(submitted.path)).phase == "running"
        assert api.paths("GET").count(PODS) == 2, "one at the submission, one now"

    def test_an_unreachable_server_is_unknown(
        self, api: Api, submitted: RunDir, launcher: KubernetesLauncher
    ) -> None:
        api.answer("GET", ".*", 500, "boom")
        found = launcher.state(DIGITS, str(submitted.path))
        assert (found.phase, found.source, found.exit_code) == ("unknown", "API server", None)
        assert "boom" in found.detail

    def test_for_a_list_of_runs_an_unreachable_server_is_tried_once(
        self, api: Api, submitted: RunDir, launcher: KubernetesLauncher, tmp_path: Path
    ) -> None:
        another = RunDir(tmp_path / "another")
        another.create()
        (another.control / "cluster.json").write_bytes((submitted.control / "cluster.json").read_bytes())
        api.answer("GET", ".*", 503, "away")
        api.requests.clear()
        for run, name in ((submitted, "digits"), (another, "other")):
            handle = JobHandle(f"kubernetes:job/default/{name}")
            assert launcher.state(handle, str(run.path)).phase == "unknown"
        assert len(api.requests) == 1

    def test_an_invalid_handle(self, run: RunDir, launcher: KubernetesLauncher) -> None:
        found = launcher.state(JobHandle("kubernetes:4711"), str(run.path))
        assert (found.phase, found.source) == ("unknown", "handle")

    def test_gone_without_a_record(self, api: Api, submitted: RunDir, launcher: KubernetesLauncher) -> None:
        del api.objects[f"{JOBS}/digits"]
        found = launcher.state(DIGITS, str(submitted.path))
        assert (found.phase, found.exit_code) == ("stopped", None)
        assert "how it ended is recorded on the run volume" in found.detail

    def test_expired_credentials_are_read_again(
        self,
        api: Api,
        submitted: RunDir,
        launcher: KubernetesLauncher,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        put(api, running("a", 0), running("b", 1))
        api.refuse("GET", ".*", 401, "Unauthorized")
        assert launcher.state(DIGITS, str(submitted.path)).phase == "unknown"
        api.responses.clear()
        write_kubeconfig(tmp_path / "renewed", {"here": api.url}, token="n3w")
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "renewed"))
        time.sleep(0.1)
        assert launcher.state(DIGITS, str(submitted.path)).phase == "running"
        assert api.requests[-1].token == "Bearer n3w"

    def test_the_cluster_is_the_one_of_the_submission(
        self,
        api: Api,
        submitted: RunDir,
        launcher: KubernetesLauncher,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """`kubectl config use-context` in between must not make a running job look deleted."""
        put(api, running("a", 0), running("b", 1))
        write_kubeconfig(tmp_path / "two", {"other": "http://127.0.0.1:1", "here": api.url})
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "two"))
        assert KubernetesLauncher().state(DIGITS, str(submitted.path)).phase == "running"
        write_kubeconfig(tmp_path / "two", {"here": "http://127.0.0.1:1"})
        found = KubernetesLauncher().state(DIGITS, str(submitted.path))
        assert found.phase == "unknown"
        assert "the context here now means http://127.0.0.1:1" in found.detail


class TestCancel:
    def test_everything_with_the_runs_label_is_deleted(
        self, api: Api, submitted: RunDir, launcher: KubernetesLauncher
    ) -> None:
        put(api, running("a", 0), running("x", 0, run="another"))
        service = api.objects[f"{SERVICES}/digits"]
        del service["metadata"]["ownerReferences"]
        launcher.cancel(DIGITS, str(submitted.path))
        assert api.paths("DELETE") == [f"{JOBS}/digits", f"{SERVICES}/digits", f"{PODS}/a"]
        assert api.bodies("DELETE")[0]["propagationPolicy"] == "Foreground"
        time.sleep(0.1)
        found = launcher.state(DIGITS, str(submitted.path))
        assert (found.phase, found.exit_code) == ("stopped", 77)

    def test_what_has_an_owner_is_left_to_the_garbage_collector(
        self, api: Api, submitted: RunDir, launcher: KubernetesLauncher
    ) -> None:
        launcher.cancel(DIGITS, str(submitted.path))
        assert api.paths("DELETE") == [f"{JOBS}/digits"]

    def test_again_while_its_pods_save(
        self, api: Api, submitted: RunDir, launcher: KubernetesLauncher
    ) -> None:
        put(api, running("a", 0, head={"ownerReferences": [{"uid": "u"}]}))
        api.lingering.add(f"{JOBS}/digits")
        for _ in range(3):
            launcher.cancel(DIGITS, str(submitted.path))
            time.sleep(0.1)
        assert api.paths("DELETE") == [f"{JOBS}/digits"]
        assert api.paths("GET").count(SERVICES) == 1, "asked for three times, ordered once"
        again = KubernetesLauncher()  # another command
        again.cancel(DIGITS, str(submitted.path))
        assert api.paths("DELETE") == [f"{JOBS}/digits"], "it is on its way already"
        found = launcher.state(DIGITS, str(submitted.path))
        assert (found.phase, found.detail) == ("running", "it is being removed; a not gone yet")

    def test_one_that_has_ended_stays(
        self, api: Api, submitted: RunDir, launcher: KubernetesLauncher
    ) -> None:
        set_job(api, condition=FAILED)
        launcher.cancel(DIGITS, str(submitted.path))
        assert api.paths("DELETE") == []
        assert not (submitted.control / "cancel").exists()

    def test_no_right_to_delete(self, api: Api, submitted: RunDir, launcher: KubernetesLauncher) -> None:
        api.refuse("DELETE", ".*", 403, 'User "me" cannot delete resource "jobs"', "Forbidden")
        with pytest.raises(UnavailableError, match="no right to delete jobs") as caught:
            launcher.cancel(DIGITS, str(submitted.path))
        assert caught.value.hint == "kubectl --context here auth can-i delete jobs.batch -n default"
        assert not (submitted.control / "cancel").exists()

    def test_pods_without_an_owner_that_one_may_not_delete_are_named(
        self, api: Api, submitted: RunDir, launcher: KubernetesLauncher, capfd: pytest.CaptureFixture[str]
    ) -> None:
        put(api, running("a", 0))
        api.refuse("DELETE", f"{PODS}/.*", 403, 'User "me" cannot delete resource "pods"', "Forbidden")
        launcher.cancel(DIGITS, str(submitted.path))
        assert f"{JOBS}/digits" not in api.objects
        assert "Pod a is left: you have no right to delete pods" in capfd.readouterr().err

    def test_an_unreachable_server(self, api: Api, submitted: RunDir, launcher: KubernetesLauncher) -> None:
        api.answer("GET", ".*", 503, "away")
        with pytest.raises(UnavailableError, match="the state of job digits is not known"):
            launcher.cancel(DIGITS, str(submitted.path))

    def test_anothers_object_of_the_same_name_stays(
        self, api: Api, submitted: RunDir, launcher: KubernetesLauncher
    ) -> None:
        api.put(f"{JOBS}/digits", job_body(run="digits-9a"))
        launcher.cancel(DIGITS, str(submitted.path))
        assert api.paths("DELETE") == []
        assert f"{JOBS}/digits" in api.objects


KINDS = {
    "jobset": ("jobset.x-k8s.io/v1alpha2", ["jobsets"]),
    "volcano": ("batch.volcano.sh/v1alpha1", ["jobs"]),
    "trainjob": ("trainer.kubeflow.org/v1alpha1", ["trainingruntimes", "trainjobs"]),
}


def test_what_an_ended_run_has_left_is_named_with_the_command_that_removes_it(
    api: Api, submitted: RunDir, launcher: KubernetesLauncher
) -> None:
    set_job(api, condition={"type": "Complete"})
    assert launcher.left_after_end(DIGITS, str(submitted.path)) == (
        "its Job digits and what belongs to it stay in the cluster for 7d after the end (--ttl); "
        "`kubectl -n default delete jobs.batch digits` removes them"
    )
    del api.objects[f"{JOBS}/digits"]
    assert launcher.left_after_end(DIGITS, str(submitted.path)) == ""
    api.answer("GET", ".*", 503, "away")
    assert launcher.left_after_end(DIGITS, str(submitted.path)) == ""


@pytest.mark.parametrize("kind", KINDS)
def test_every_other_kind_is_submitted_queried_and_cancelled(
    api: Api, run: RunDir, job: Job, launcher: KubernetesLauncher, kind: str
) -> None:
    group, plurals = KINDS[kind]
    api.installed.append(f"/apis/{group}/")
    paths = [f"/apis/{group}/namespaces/default/{plural}" for plural in plurals]
    modes = {"accessModes": ["ReadWriteMany"]}
    api.put(f"{CLAIMS}/runs", {"metadata": {"name": "runs"}, "spec": modes, "status": modes})
    plan = launcher.plan(job(nodes=2), launcher.example.model_copy(update={"kind": kind}))
    handle = launcher.submit(plan)
    assert handle.text == f"kubernetes:{kind}/default/digits"
    assert api.paths("POST") == paths
    assert api.bodies("POST") == list(yaml.safe_load_all(plan.file("manifests.yaml")))
    assert launcher.state(handle, str(run.path)).detail == "its pods are not there yet"
    put(api, running("a", 0), running("b", 1, host="gpu-2"))
    time.sleep(0.1)
    found = launcher.state(handle, str(run.path))
    assert (found.phase, found.detail) == ("running", "on gpu-1, gpu-2")
    for name in ("a", "b"):
        del api.objects[f"{PODS}/{name}"]
    time.sleep(0.1)
    launcher.cancel(handle, str(run.path))
    assert api.paths("DELETE") == [f"{paths[-1]}/digits"]
    time.sleep(0.1)
    assert launcher.state(handle, str(run.path)).exit_code == 77


class TestTorchX:
    """TorchX's own Runner gives the same results."""

    def test_list_and_status_by_its_runner(
        self, api: Api, submitted: RunDir, launcher: KubernetesLauncher
    ) -> None:
        from torchx.specs import AppState

        managed = {"app.kubernetes.io/managed-by": "dist-train", "dist-train/run-id": "digits-1f"}
        api.put(f"{JOBS}/old", job_body("old", condition=FAILED, head={"labels": managed}))
        api.put(f"{JOBS}/foreign", job_body("foreign", head={"labels": {}}))
        put(api, running("a", 0), running("b", 1, host="gpu-2"))
        launcher.state(DIGITS, str(submitted.path))
        [session] = launcher._sessions.values()
        runner = session._runner
        found = {app.app_handle: app.state for app in runner.list("dist_train")}
        assert found == {
            "dist_train://dist-train/job:default:digits": AppState.RUNNING,
            "dist_train://dist-train/job:default:old": AppState.FAILED,
        }
        status = runner.status("dist_train://dist-train/job:default:digits")
        assert status is not None
        assert status.state == AppState.RUNNING
        assert [(r.id, r.hostname, r.state) for r in status.roles[0].replicas] == [
            (0, "gpu-1", AppState.RUNNING),
            (1, "gpu-2", AppState.RUNNING),
        ]
        assert json.loads(status.structured_error_msg)["state"]["phase"] == "running"
        assert runner.status("dist_train://dist-train/job:default:none") is not None, (
            "pods of the run are there"
        )


class TestRestarts:
    """A rank that was started again within its pod: the API knows nothing of it."""

    def line(self, second: int, text: str) -> tuple[str, str]:
        return f"2026-11-21T10:00:{second:02d}Z", f"[dist-train a] {text}"

    def test_those_within_a_pod_are_counted_by_its_log(
        self, api: Api, submitted: RunDir, launcher: KubernetesLauncher
    ) -> None:
        put(api, running("a", 0), running("b", 1))
        begins = begin_line(1, 20, start=2)
        api.logs["a"] = Log([self.line(1, begins), self.line(2, "attempt 3 goes on from step 30: rank 1")])
        assert [line[-10:] for line in launcher.state(DIGITS, str(submitted.path)).nodes] == [
            "restarts 2"
        ] * 2

    def test_without_a_log_those_of_pods_are_shown(
        self, api: Api, submitted: RunDir, launcher: KubernetesLauncher
    ) -> None:
        put(api, running("a", 0), running("b", 1))
        api.refuse("GET", ".*/log", 403, 'User "me" cannot get resource "pods/log"', "Forbidden")
        assert [line[-10:] for line in launcher.state(DIGITS, str(submitted.path)).nodes] == [
            "restarts 0"
        ] * 2

    def test_a_cancel_reads_no_log(self, api: Api, submitted: RunDir, launcher: KubernetesLauncher) -> None:
        put(api, running("a", 0))
        launcher.cancel(DIGITS, str(submitted.path))
        assert not [path for path in api.paths("GET") if path.endswith("/log")]
