"""Pods are real processes: they resolve and reach each other, and end as a kubelet ends them."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time

import psutil
import pytest

from cluster.harness.manifests import pod, service
from cluster.harness.programs import IN_RUNS, RUNS, SLEEP, python, run, submit
from cluster.kubernetes_cluster import KubernetesCluster
from cluster.objects import PODS, SERVICES, is_true

pytestmark = pytest.mark.multiprocess


TALK = """
    import os, socket, time
    index, port = os.environ["JOB_COMPLETION_INDEX"], 29400
    print("pid", os.getpid(), "on", socket.gethostname(), flush=True)
    if index == "0":
        with socket.create_server(("", port)) as server:
            peer, address = server.accept()
            print("heard", peer.recv(100).decode(), "from", address[0])
    else:
        deadline = time.monotonic() + 20
        while True:
            try:
                with socket.create_connection(("train-0.train", port), timeout=5) as peer:
                    peer.send(f"{index} of {socket.getfqdn()}".encode())
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
"""


# Together.


def test_two_pods_connect_by_dns_name(cluster: KubernetesCluster) -> None:
    cluster.store.create(SERVICES, "default", service())
    submit(cluster, python(TALK))
    cluster.wait_job_result("Complete")
    first, second = cluster.pod(0), cluster.pod(1)
    address = second.manifest["status"]["podIP"]
    heard = f"heard 1 of train-1.train.default.svc.cluster.local from {address}\n"
    assert cluster.logs(first) == f"pid 1 on train-0\n{heard}"
    assert cluster.logs(second) == "pid 1 on train-1\n"
    assert {first.node, second.node} == {"node-1", "node-2"}


@pytest.mark.parametrize(("publish", "selects"), [(True, False), (False, True)])
def test_a_name_needs_a_service_that_chooses_the_pod(
    cluster: KubernetesCluster, publish: bool, selects: bool
) -> None:
    made = service(publish=publish)
    if not selects:
        made["spec"]["selector"] = {"batch.kubernetes.io/job-name": "another"}
    cluster.store.create(SERVICES, "default", made)
    submit(cluster, python(SLEEP))
    cluster.wait_output("ready", 0, 1)
    cluster.wait_for(lambda: all(is_true(p.manifest, "Ready") for p in cluster.pods()), "both are ready")
    hosts = cluster.folder / "pods" / cluster.pod(1).uid / "etc" / "hosts"
    if selects:
        cluster.wait_for(lambda: "train-0.train" in hosts.read_text(), "the name of pod 0")
    else:
        assert "train-0.train" not in hosts.read_text()


def test_a_new_pod_takes_the_name_with_a_new_address(cluster: KubernetesCluster) -> None:
    cluster.store.create(SERVICES, "default", service())
    submit(cluster, python(SLEEP))
    cluster.wait_output("ready", 0, 1)
    old = cluster.pod(0)
    cluster.kill(old)
    cluster.wait_for(lambda: cluster.pod(0).uid != old.uid, "a replacement")
    cluster.wait_output("ready", 0)
    hosts = cluster.folder / "pods" / cluster.pod(1).uid / "etc" / "hosts"
    new = cluster.pod(0).manifest["status"]["podIP"]
    cluster.wait_for(lambda: f"{new} train-0.train" in hosts.read_text(), "the new address")
    assert old.manifest["status"]["podIP"] != new
    assert hosts.read_text().count("train-0.train.default.svc.cluster.local") == 1


def test_a_disconnected_pod_is_unreachable(cluster: KubernetesCluster) -> None:
    submit(cluster, python(SLEEP))
    cluster.wait_output("ready", 0, 1)
    address = cluster.pod(1).manifest["status"]["podIP"]
    code = f"import socket; print(socket.create_connection(('{address}', 9), 0.3))"
    ask = [*cluster.prefix(cluster.pod(0)), sys.executable, "-c", code]

    def answer() -> str:
        return subprocess.run(ask, capture_output=True, text=True, timeout=20).stderr.splitlines()[-1]

    assert answer() == "ConnectionRefusedError: [Errno 111] Connection refused"
    cluster.disconnect(cluster.pod(1))
    assert "timed out" in answer()
    cluster.reconnect(cluster.pod(1))
    cluster.wait_for(lambda: "refused" in answer(), "the network is whole again")


# Ends.

AGAIN = """
    import os, pathlib, signal, sys
    marker = pathlib.Path("/runs", "been-here-" + os.environ["JOB_COMPLETION_INDEX"])
    if marker.exists():
        print("again")
        sys.exit(0)
    marker.touch()
    print("ready", flush=True)
    {first}
"""


@pytest.mark.parametrize(
    ("first", "code", "failed"),
    [
        ("sys.exit(75)", 75, 0),
        ("sys.exit(3)", 3, 1),
        ("os.kill(os.getpid(), 9); sys.exit(5)", 5, 1),
    ],
)
def test_a_failed_pod_is_recreated(cluster: KubernetesCluster, first: str, code: int, failed: int) -> None:
    once = python(AGAIN.format(first=first), volumeMounts=[IN_RUNS])
    submit(cluster, once, completions=1, volumes=[RUNS])
    cluster.wait_job_result("Complete")
    assert [pod.exit_code for pod in cluster.pods()] == [code, 0]
    assert cluster.job()["status"].get("failed", 0) == failed
    assert cluster.logs(cluster.pod(0)) == "again\n"


def test_a_killed_pod_is_137_and_recreated(cluster: KubernetesCluster) -> None:
    waiting = python(AGAIN.format(first="signal.pause()"), volumeMounts=[IN_RUNS])
    submit(cluster, waiting, volumes=[RUNS])
    cluster.wait_output("ready", 0, 1)
    for index in (0, 1):
        cluster.kill(cluster.pod(index))
    cluster.wait_job_result("Failed: BackoffLimitExceeded")
    assert {pod.exit_code for pod in cluster.pods()} == {137}


def test_a_fatal_exit_ends_the_other_pod_with_sigterm(cluster: KubernetesCluster) -> None:
    code = """
        import os, signal, sys
        if os.environ["JOB_COMPLETION_INDEX"] == "1":
            sys.exit(78)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
        print("ready", flush=True)
        signal.pause()
    """
    submit(cluster, python(code))
    cluster.wait_job_result("Failed: PodFailurePolicy")
    # The job's result may be there before the pod that it ended has gone.
    cluster.wait_for(lambda: [pod.exit_code for pod in cluster.pods()] == [78], "the ended pod's removal")
    assert cluster.events("Killing") == ["Stopping container main"]


def test_a_deleted_pod_saves_exits_with_75_and_is_recreated(cluster: KubernetesCluster) -> None:
    first = """signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    signal.pause()"""
    submit(cluster, python(AGAIN.format(first=first), volumeMounts=[IN_RUNS]), completions=1, volumes=[RUNS])
    cluster.wait_output("ready", 0)
    old = cluster.pod(0)
    cluster.delete(old)
    cluster.wait_job_result("Complete")
    assert cluster.job()["status"].get("failed", 0) == 0
    assert [pod.uid for pod in cluster.pods()] != [old.uid]
    assert cluster.logs(old) == "ready\n"


def test_an_ignored_sigterm_waits_for_the_grace(cluster: KubernetesCluster) -> None:
    """Process 1 ignores what it does not handle; after the grace it is killed."""
    submit(cluster, python(SLEEP), completions=1, policy=None, backoff_limit=0, grace_s=1)
    cluster.wait_output("ready", 0)
    began = time.monotonic()
    cluster.delete(cluster.pod(0))
    cluster.wait_job_result("Failed: BackoffLimitExceeded")
    assert time.monotonic() - began > 0.9


def test_a_pod_deleted_by_force_is_removed_at_once_and_killed_soon(cluster: KubernetesCluster) -> None:
    alone = pod("alone")
    alone["spec"]["containers"] = [python(SLEEP)]
    cluster.store.create(PODS, "default", alone)
    cluster.wait_output("ready", -1)
    worker = cluster.kubelet.worker(cluster.pod(-1).manifest)
    cluster.delete(cluster.pod(-1), grace_s=0)
    assert cluster.pods() == []
    cluster.wait_for(lambda: worker.has_ended, "its processes have gone")


def test_child_processes_end_with_their_container(cluster: KubernetesCluster) -> None:
    mark = str(10**9 + secrets.randbelow(10**9))
    code = f"""
        import subprocess, sys
        child = subprocess.Popen(["sleep", "{mark}"], start_new_session=True)
        print("ready", flush=True)
        sys.stdin.read()
        sys.exit(0)
    """
    run(cluster, code)
    assert not [p for p in psutil.process_iter(["cmdline"]) if mark in (p.info["cmdline"] or [])]


def test_the_termination_message_is_kept(cluster: KubernetesCluster) -> None:
    code = """
        open("/dev/termination-log", "w").write('{"code":41}')
        raise SystemExit(41)
    """
    ended = run(cluster, code)
    assert (ended.exit_code, ended.message) == (41, '{"code":41}')
    assert ended.state["terminated"]["reason"] == "Error"
    assert ended.state["terminated"]["startedAt"] <= ended.state["terminated"]["finishedAt"]


def test_the_log_is_the_termination_message_by_fallback(cluster: KubernetesCluster) -> None:
    ended = run(
        cluster, "raise SystemExit('no disk')", more={"terminationMessagePolicy": "FallbackToLogsOnError"}
    )
    assert (ended.exit_code, ended.message) == (1, "no disk\n")


def test_a_pod_out_of_memory_and_an_evicted_one_have_their_reasons(cluster: KubernetesCluster) -> None:
    submit(cluster, python(SLEEP), backoff_limit=5)
    cluster.wait_output("ready", 0, 1)
    hungry, evicted = cluster.pod(0), cluster.pod(1)
    cluster.oom(hungry)
    cluster.evict(evicted)
    cluster.wait_for(lambda: len(cluster.pods()) == 4, "both are replaced")
    by_uid = {pod.uid: pod for pod in cluster.pods()}
    assert by_uid[hungry.uid].state["terminated"]["reason"] == "OOMKilled"
    assert by_uid[hungry.uid].exit_code == 137
    assert by_uid[evicted.uid].manifest["status"]["reason"] == "Evicted"
    assert is_true(by_uid[evicted.uid].manifest, "DisruptionTarget")
    assert cluster.job()["status"]["failed"] == 1, "a disruption is ignored"


def test_a_preempted_pod_has_its_grace_and_does_not_count(cluster: KubernetesCluster) -> None:
    submit(cluster, python(SLEEP), completions=1, grace_s=1)
    cluster.wait_output("ready", 0)
    old = cluster.pod(0)
    cluster.disrupt(old)
    cluster.wait_for(lambda: any(pod.uid != old.uid for pod in cluster.pods()), "a replacement")
    assert cluster.job()["status"].get("failed", 0) == 0


def test_a_pod_on_a_dead_node_stays_terminating(cluster: KubernetesCluster) -> None:
    submit(cluster, python(SLEEP), grace_s=0)
    cluster.wait_output("ready", 0, 1)
    lost = cluster.pod(1)
    cluster.lose_node(lost.node)
    cluster.wait_phases("Running", "Terminating")
    cluster.delete(lost, grace_s=0)
    assert cluster.phases() == ["Running", "Terminating"]
    cluster.delete_node(lost.node)
    cluster.wait_for(lambda: cluster.phases() == ["Running", "Running"], "a replacement elsewhere")
    assert cluster.pod(1).node == cluster.pod(0).node
