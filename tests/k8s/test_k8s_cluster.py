"""The cluster as a whole: pods run without its server, errors are raised, nothing is left."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from kubernetes import client, config

from cluster.harness.programs import IN_RUNS, RUNS, SLEEP, python, run, submit
from cluster.kubernetes_cluster import ClusterSettings, KubernetesCluster

pytestmark = pytest.mark.multiprocess


# The cluster itself.


def test_pods_continue_while_the_server_is_down(cluster: KubernetesCluster) -> None:
    code = """
        import pathlib, time
        while not pathlib.Path("/runs/go").exists():
            time.sleep(0.02)
        pathlib.Path("/runs/done").touch()
    """
    submit(cluster, python(code, volumeMounts=[IN_RUNS]), completions=1, volumes=[RUNS])
    cluster.wait_for(lambda: cluster.phases() == ["Running"], "it runs")
    cluster.down()
    (cluster.volume / "go").touch()
    worker = cluster.kubelet.worker(cluster.pod(0).manifest)
    cluster.wait_for(lambda: worker.has_ended, "the pod has ended")
    with cluster.kubelet.lock:
        assert cluster.phases() == ["Running"]
    assert (cluster.volume / "done").exists()
    cluster.up()
    cluster.wait_job_result("Complete")


def test_one_restricted_pod_may_run(cluster: KubernetesCluster) -> None:
    cluster.enforce_restricted()
    secure = {
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    ended = run(cluster, "print('fine')", more={"securityContext": secure})
    assert cluster.logs(ended) == "fine\n"


def test_two_clusters_side_by_side_leave_nothing() -> None:
    before = network()
    others = psutil.Process().children(recursive=True)  # the server that forks other tests' commands
    with KubernetesCluster() as one, KubernetesCluster(ClusterSettings(nodes=1)) as two:
        for cluster in (one, two):
            submit(cluster, python(SLEEP))
            cluster.wait_output("ready", 0, 1)
        assert one.api.port != two.api.port
        processes = [found for found in psutil.Process().children(recursive=True) if found not in others]
        assert len(processes) >= 10
        folders = [one.folder, two.folder]
    assert not [process for process in processes if process.is_running()]
    assert not any(folder.exists() for folder in folders)
    assert network() == before


def test_an_error_in_a_controller_is_raised() -> None:
    def broken() -> None:
        raise ValueError("on purpose")

    cluster = KubernetesCluster()
    cluster.controllers.append(broken)
    cluster.start()
    with pytest.raises(AssertionError, match="on purpose"):
        cluster.wait_for(lambda: False, "the break")
    with pytest.raises(RuntimeError, match="on purpose"):
        cluster.stop()
    assert not cluster.folder.exists()


def test_pods_end_with_the_process_of_the_cluster() -> None:
    here = Path(__file__).parent
    code = """
        import sys
        from cluster.kubernetes_cluster import KubernetesCluster
        from cluster.harness.manifests import job
        from cluster.objects import JOBS
        cluster = KubernetesCluster()
        cluster.start()
        cluster.store.create(JOBS, "default", job("train", "sh", "-c", "echo ready; sleep 1000"))
        cluster.wait_output("ready", 0, 1)
        print(cluster.folder, flush=True)
        sys.stdin.read()
    """
    words = [sys.executable, "-c", textwrap.dedent(code)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=here, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        folder = Path(holder.stdout.readline().strip())
        processes = psutil.Process(holder.pid).children(recursive=True)
        holder.kill()
    assert len(processes) >= 7
    assert psutil.wait_procs(processes, timeout=10)[1] == []
    shutil.rmtree(folder)


def test_k8s_dev_prints_its_usage_and_ends_with_ctrl_c() -> None:
    words = [sys.executable, "-u", "-m", "cluster"]
    with subprocess.Popen(words, cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True) as dev:
        assert dev.stdout is not None
        printed = []
        for line in dev.stdout:
            printed.append(line.strip())
            if line.startswith("Ctrl-C"):
                break
        kubeconfig = next(line.partition("KUBECONFIG=")[2] for line in printed if "KUBECONFIG=" in line)
        api = config.new_client_from_config(kubeconfig)
        assert [node.metadata.name for node in client.CoreV1Api(api).list_node().items] == [
            "node-1",
            "node-2",
        ]
        api.close()
        dev.send_signal(signal.SIGINT)
        assert dev.wait(20) == 0
    assert not Path(kubeconfig).parent.exists()


def network() -> str:
    """The host's own interfaces, routes and mounts."""
    said = [
        subprocess.run(["ip", word], capture_output=True, text=True, timeout=10).stdout
        for word in ("link", "route")
    ]
    return "".join([*said, Path("/proc/self/mounts").read_text(encoding="utf-8")])
