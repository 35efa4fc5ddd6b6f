"""The client of the API server over real HTTP: requests, and every error response with its hint."""

from __future__ import annotations

import builtins
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import certifi
import pytest
from kubernetes_bodies import job
from kubernetes_stand_ins import CLAIMS, JOBS, PODS, Api, status_object, write_kubeconfig

from dist_train.errors import ConfigError, DistTrainError, UnavailableError
from launchers._kubernetes.api import http_transport
from launchers._kubernetes.api.api_errors import (
    AlreadyExists,
    Expired,
    Forbidden,
    NoLogYet,
    Unauthorized,
    Unreachable,
)
from launchers._kubernetes.api.cluster import Cluster
from launchers._kubernetes.api.kinds import CLAIM, JOB, JOB_SET, POD

pytestmark = pytest.mark.filterwarnings("ignore:HTTPResponse:DeprecationWarning")
MANIFEST = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "digits"},
    "spec": {"template": {"spec": {"unknownField": {"deep": [1, "two", None, True]}}}},
}


@pytest.fixture
def cluster(api: Api) -> Cluster:
    return Cluster.open(None, "default")


def refused(call: Any, kind: type[DistTrainError]) -> DistTrainError:
    """Return the error that a call raises."""
    with pytest.raises(kind) as caught:
        call()
    return caught.value


def test_a_body_is_sent_exactly_as_rendered(api: Api, cluster: Cluster) -> None:
    made = cluster.create(MANIFEST)
    assert api.bodies("POST") == [MANIFEST], "no default is added, no field is dropped"
    assert api.paths("POST") == [JOBS]
    assert made["metadata"]["uid"]


def test_get_returns_none_for_a_missing_object(api: Api, cluster: Cluster) -> None:
    assert cluster.get(JOB, "digits") is None
    api.put(f"{JOBS}/digits", job())
    found = cluster.get(JOB, "digits")
    assert found is not None
    assert found["metadata"]["name"] == "digits"


def test_a_list_is_read_page_by_page_and_its_items_have_their_kind(api: Api, cluster: Cluster) -> None:
    first = {"metadata": {"continue": "more", "resourceVersion": "7"}, "items": [{"metadata": {"name": "a"}}]}
    last = {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "b"}}]}
    api.answer("GET", PODS, 200, last)
    api.answer("GET", PODS, 200, first, times=1)
    found = cluster.find(POD, "dist-train/run-id=digits-1f")
    assert [body["metadata"]["name"] for body in found.items] == ["a", "b"]
    assert {body["kind"] for body in found.items} == {"Pod"}
    assert found.version == "7"
    queries = [request.query for request in api.requests]
    assert [query.get("continue") for query in queries] == [None, "more"]
    assert {query["labelSelector"] for query in queries} == {"dist-train/run-id=digits-1f"}


def test_a_delete_has_its_propagation_and_the_uid(api: Api, cluster: Cluster) -> None:
    api.put(f"{JOBS}/digits", job())
    assert cluster.delete(JOB, "digits", "Foreground", uid="uid-1") is True
    assert cluster.delete(JOB, "digits") is False, "there is none any more"
    first, second = api.bodies("DELETE")
    assert first["propagationPolicy"] == "Foreground"
    assert first["preconditions"] == {"uid": "uid-1"}
    assert "preconditions" not in second


def test_deleting_what_has_been_replaced_deletes_nothing(api: Api, cluster: Cluster) -> None:
    api.refuse("DELETE", f"{JOBS}/digits", 409, "the UID in the precondition (a) does not match", "Conflict")
    assert cluster.delete(JOB, "digits", uid="a") is False


def test_a_patch_is_a_merge_patch(api: Api, cluster: Cluster) -> None:
    api.put(f"{JOBS}/digits", job())
    change = {"metadata": {"ownerReferences": [{"uid": "u"}]}}
    cluster.patch(JOB, "digits", change)
    [request] = [request for request in api.requests if request.method == "PATCH"]
    assert request.body == change
    assert request.content_type == "application/merge-patch+json"


def test_warnings_of_the_server_are_kept_once(api: Api, cluster: Cluster) -> None:
    said = '299 - "would violate PodSecurity \\"restricted:latest\\": x", 299 - "second"'
    api.answer("POST", JOBS, 201, MANIFEST, {"Warning": said})
    cluster.create(MANIFEST)
    cluster.create(MANIFEST)
    assert cluster.warnings == ['would violate PodSecurity "restricted:latest": x', "second"]


def test_the_time_is_the_servers(api: Api, cluster: Cluster) -> None:
    api.date = "Sat, 21 Nov 2020 10:00:00 GMT"
    api.put(f"{JOBS}/digits", job())
    cluster.get(JOB, "digits")
    assert 0 <= (cluster.now() - datetime(2020, 11, 21, 10, tzinfo=UTC)).total_seconds() < 30


class TestErrorResponses:
    def test_401(self, api: Api, cluster: Cluster) -> None:
        api.refuse("GET", f"{JOBS}/digits", 401, "Unauthorized", "Unauthorized")
        error = refused(lambda: cluster.get(JOB, "digits"), Unauthorized)
        assert "does not accept these credentials (401" in error.what
        assert error.hint is not None
        assert "kubectl --context here auth whoami" in error.hint
        assert error.exit_code == 69

    def test_403_names_verb_kind_and_namespace_and_how_to_ask(self, api: Api, cluster: Cluster) -> None:
        words = (
            'jobs.batch is forbidden: User "me" cannot create resource "jobs" in API group "batch" '
            'in the namespace "default"'
        )
        api.refuse("POST", JOBS, 403, words, "Forbidden")
        error = refused(lambda: cluster.create(MANIFEST), Forbidden)
        assert "you have no right to create jobs.batch in namespace default" in error.what
        assert error.hint == "kubectl --context here auth can-i create jobs.batch -n default"
        assert error.exit_code == 69

    def test_403_may_be_a_namespace_that_does_not_exist(self, api: Api) -> None:
        """An API server answers 403 for any namespace without rights in it, also where it is not there."""
        api.answer("GET", ".*", 403, status_object(403, 'cannot list resource "pods"', "Forbidden"))
        error = refused(lambda: Cluster.open(None, "nope").find(POD), Forbidden)
        assert "the server says the same where there is no namespace nope" in str(error.cause)

    def test_403_of_a_server_that_has_just_started(self, api: Api, cluster: Cluster) -> None:
        """Admission plugins refuse everything until they have read the objects that they need."""
        words = 'jobs.batch "digits" is forbidden: not yet ready to handle request'
        api.refuse("POST", JOBS, 403, words, "Forbidden")
        error = refused(lambda: cluster.create(MANIFEST), Unreachable)
        assert "has just started" in str(error.cause)
        assert "quota" not in str(error.hint)

    def test_403_while_the_server_has_no_roles_yet(self, api: Api, cluster: Cluster) -> None:
        words = (
            'jobs.batch is forbidden: User "me" cannot create resource "jobs" in API group "batch" in the '
            'namespace "default": RBAC: role.rbac.authorization.k8s.io "dist-train" not found'
        )
        api.refuse("POST", JOBS, 403, words, "Forbidden")
        error = refused(lambda: cluster.create(MANIFEST), Forbidden)
        assert "has just started" in str(error.cause)
        assert str(error.hint).startswith("try again in a minute; ")

    def test_403_of_a_log_names_the_subresource(self, api: Api, cluster: Cluster) -> None:
        api.refuse("GET", f"{PODS}/a/log", 403, 'cannot get resource "pods/log"', "Forbidden")
        error = refused(lambda: cluster.log("a", "node", False).__enter__(), Forbidden)
        assert "no right to get pods/log" in error.what
        assert error.hint == "kubectl --context here auth can-i get pods --subresource=log -n default"

    def test_403_of_a_quota_is_not_a_missing_right(self, api: Api, cluster: Cluster) -> None:
        words = 'jobs.batch "digits" is forbidden: exceeded quota: team, requested: count/jobs.batch=1'
        api.refuse("POST", JOBS, 403, words, "Forbidden")
        error = refused(lambda: cluster.create(MANIFEST), UnavailableError)
        assert not isinstance(error, Forbidden)
        assert "exceeded quota: team" in error.what
        assert "auth can-i" not in str(error)

    def test_404_of_a_kind_names_what_is_not_installed(self, api: Api, cluster: Cluster) -> None:
        jobset = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "a"}}
        error = refused(lambda: cluster.create(jobset), UnavailableError)
        assert error.what.startswith("JobSet (https://jobset.sigs.k8s.io) is not installed on ")
        assert "--kind job" in str(error.hint)
        refused(lambda: cluster.get(JOB_SET, "a"), UnavailableError)

    def test_404_of_the_namespace(self, api: Api, cluster: Cluster) -> None:
        body = status_object(
            404, 'namespaces "default" not found', "NotFound", name="default", kind="namespaces"
        )
        api.answer("POST", JOBS, 404, body)
        error = refused(lambda: cluster.create(MANIFEST), ConfigError)
        assert "there is no namespace default" in error.what
        assert "--namespace" in str(error.hint)
        assert error.exit_code == 78

    def test_409(self, api: Api, cluster: Cluster) -> None:
        cluster.create(MANIFEST)
        error = refused(lambda: cluster.create(MANIFEST), AlreadyExists)
        assert "already exists" in error.what

    def test_409_of_a_quotas_counter_is_tried_again(self, api: Api, cluster: Cluster) -> None:
        words = "Operation cannot be fulfilled on resourcequotas: the object has been modified"
        api.answer("POST", JOBS, 409, status_object(409, words, "Conflict"), times=2)
        cluster.create(MANIFEST)
        assert len(api.bodies("POST")) == 3

    @pytest.mark.parametrize("status", [400, 422])
    def test_an_invalid_object_is_refused_with_the_servers_message(
        self, api: Api, cluster: Cluster, status: int
    ) -> None:
        words = 'Job.batch "digits" is invalid: spec.template.spec.containers: Required value'
        api.refuse("POST", JOBS, status, words, "Invalid")
        error = refused(lambda: cluster.create(MANIFEST), ConfigError)
        assert words in error.what
        assert "--dry-run" in str(error.hint)
        assert error.exit_code == 78

    @pytest.mark.parametrize("status", [429, 500, 503])
    def test_a_server_error_is_unreachable(self, api: Api, cluster: Cluster, status: int) -> None:
        api.refuse("GET", f"{JOBS}/digits", status, "etcdserver: leader changed")
        error = refused(lambda: cluster.get(JOB, "digits"), Unreachable)
        assert "cannot answer now" in error.what
        assert "etcdserver: leader changed" in error.what

    def test_a_log_of_a_container_that_has_not_started(self, api: Api, cluster: Cluster) -> None:
        api.put(f"{PODS}/a", {"metadata": {"name": "a"}})
        refused(lambda: cluster.log("a", "node", False).__enter__(), NoLogYet)

    def test_a_server_that_is_no_api_server(self, api: Api, cluster: Cluster) -> None:
        api.answer("GET", f"{JOBS}/digits", 200, "<html>captive portal</html>")
        error = refused(lambda: cluster.get(JOB, "digits"), Unreachable)
        assert "is no Kubernetes API server" in error.what


class TestWatch:
    def test_gives_events_until_the_server_ends_it(self, api: Api, cluster: Cluster) -> None:
        events = [{"type": kind, "object": {"metadata": {"name": kind}}} for kind in ("ADDED", "DELETED")]
        api.watches = [events]
        found = [(kind, body["metadata"]["name"]) for kind, body in cluster.watch(POD, "a=b", "41")]
        assert found == [("ADDED", "ADDED"), ("DELETED", "DELETED")]
        [request] = api.requests
        assert (request.query["resourceVersion"], request.query["labelSelector"]) == ("41", "a=b")

    def test_410_as_an_event(self, api: Api, cluster: Cluster) -> None:
        api.watches = [
            [{"type": "ERROR", "object": status_object(410, "too old resource version", "Expired")}]
        ]
        refused(lambda: list(cluster.watch(POD, "", "1")), Expired)

    def test_410_as_an_answer(self, api: Api, cluster: Cluster) -> None:
        api.watches = [status_object(410, "too old resource version")]
        refused(lambda: list(cluster.watch(POD, "", "1")), Expired)


class TestUnreachable:
    def test_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        write_kubeconfig(tmp_path / "config", {"here": f"http://127.0.0.1:{port}"})
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        error = refused(lambda: Cluster.open(None, "default").get(JOB, "a"), Unreachable)
        assert error.what.startswith(f"the API server http://127.0.0.1:{port} cannot be reached: ")
        assert "Connection refused" in error.what
        assert "0x" not in error.what, "no address of a Python object"
        assert "kubectl --context here cluster-info" in str(error.hint)
        assert not [record for record in caplog.records if record.levelname == "WARNING"], "one try"
        assert error.exit_code == 69

    def test_no_such_host(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_kubeconfig(tmp_path / "config", {"here": "http://api.invalid:1"})
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        assert "api.invalid" in refused(lambda: Cluster.open(None, "x").get(JOB, "a"), Unreachable).what

    def test_timeout(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(http_transport, "_TIMEOUT_S", (0.2, 0.2))
        with socket.create_server(("127.0.0.1", 0)) as silent:
            write_kubeconfig(tmp_path / "config", {"here": f"http://127.0.0.1:{silent.getsockname()[1]}"})
            monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
            refused(lambda: Cluster.open(None, "x").get(JOB, "a"), Unreachable)

    def test_a_connection_that_is_cut(self, api: Api, cluster: Cluster) -> None:
        api.answer("GET", f"{JOBS}/digits", 0, "")
        refused(lambda: cluster.get(JOB, "digits"), Unreachable)

    def test_no_tls_where_tls_was_expected(
        self, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_kubeconfig(tmp_path / "config", {"here": api.url.replace("http:", "https:")})
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        error = refused(lambda: Cluster.open(None, "default").get(JOB, "a"), Unreachable)
        assert "cannot be reached" in error.what
        assert "certificate" in str(error.cause)


class TestKubeconfig:
    def test_no_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        error = refused(lambda: Cluster.open(None, "default"), ConfigError)
        assert error.what == f"there is no kubeconfig: {tmp_path / 'none'} does not exist"
        assert "export KUBECONFIG=" in str(error.hint)
        assert error.exit_code == 78

    def test_a_missing_context_lists_the_existing_ones(self, api: Api) -> None:
        error = refused(lambda: Cluster.open("ther", "default"), ConfigError)
        assert "has no context 'ther'" in error.what
        assert error.cause == "its contexts: here"
        assert api.requests == [], "found before anything is asked"

    def test_no_current_context(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "config"
        write_kubeconfig(path, {"a": "http://127.0.0.1:1", "b": "http://127.0.0.1:2"})
        path.write_text(path.read_text().replace('"current-context": "a"', '"current-context": ""'))
        monkeypatch.setenv("KUBECONFIG", str(path))
        error = refused(lambda: Cluster.open(None, "default"), ConfigError)
        assert error.cause == "its contexts: a, b"
        assert "--context NAME" in str(error.hint)

    def test_a_context_by_name(self, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_kubeconfig(tmp_path / "config", {"a": "http://127.0.0.1:1", "b": api.url})
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        found = Cluster.open("b", "default")
        assert (found.server, found.context) == (api.url, "b")
        assert found.get(CLAIM, "runs") is None
        assert api.paths("GET") == [f"{CLAIMS}/runs"]

    def test_several_files_are_one(self, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_kubeconfig(tmp_path / "one", {"a": "http://127.0.0.1:1"})
        write_kubeconfig(tmp_path / "two", {"b": api.url})
        monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'one'}:{tmp_path / 'missing'}:{tmp_path / 'two'}")
        assert Cluster.open("b", "default").server == api.url

    @pytest.mark.parametrize("text", ["a: [", "[]", "contexts: 3", "\0"])
    def test_a_damaged_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        (tmp_path / "config").write_text(text)
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        error = refused(lambda: Cluster.open(None, "default"), ConfigError)
        assert str(tmp_path / "config") in error.what

    def test_without_the_client_the_hint_is_a_command(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = builtins.__import__

        def without(name: str, *words: Any) -> Any:
            if name == "kubernetes" or name.startswith("kubernetes."):
                raise ModuleNotFoundError("No module named 'kubernetes'")
            return real(name, *words)

        monkeypatch.setattr(builtins, "__import__", without)
        error = refused(lambda: Cluster.open(None, "default"), ConfigError)
        assert "pip install 'dist-train[kubernetes]'" in str(error.hint)
        assert error.exit_code == 78


class TestWithinAPod:
    @pytest.fixture(autouse=True)
    def service_account(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from kubernetes.config import incluster_config

        from launchers._kubernetes.api import connection

        (tmp_path / "token").write_text("t0ken")
        (tmp_path / "ca.crt").write_text(Path(certifi.where()).read_text())
        monkeypatch.setattr(connection, "_TOKEN", tmp_path / "token")
        monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
        monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")

    def test_the_service_account_is_used_with_a_notice(self, capfd: pytest.CaptureFixture[str]) -> None:
        found = Cluster.open(None, "default")
        assert (found.server, found.context) == ("https://10.0.0.1:443", None)
        said = capfd.readouterr()
        assert "no kubeconfig: asking https://10.0.0.1:443 as this pod's service account" in said.err
        assert said.out == ""

    def test_a_given_context_is_not_ignored(self) -> None:
        error = refused(lambda: Cluster.open("prod", "default"), ConfigError)
        assert error.cause == "and so no context 'prod'"

    def test_a_damaged_service_account(self, tmp_path: Path) -> None:
        (tmp_path / "ca.crt").write_text("")
        error = refused(lambda: Cluster.open(None, "default"), ConfigError)
        assert "service account cannot be used" in error.what
