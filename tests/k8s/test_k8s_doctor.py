"""`dist-train doctor --launcher kubernetes` on the emulated cluster: two pods, facts through their logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster.harness.runs import PODS, TWO_BY_ONE, VOLUME, on_volume, verb, workspace
from cluster.kubernetes_cluster import KubernetesCluster

pytestmark = [pytest.mark.multiprocess, pytest.mark.proof, pytest.mark.timeout(300)]


def test_two_pods_are_checked_and_the_findings_come_here(cluster: KubernetesCluster, tmp_path: Path) -> None:
    workspace(cluster, tmp_path)
    words = ("doctor", "--launcher", "kubernetes", *PODS, *VOLUME, *TWO_BY_ONE, "--json")
    done = verb(tmp_path, *words)
    report = json.loads(done.stdout)
    errors = [one for one in report["findings"] if one["severity"] == "error"]
    assert (done.code, report["would_launch"], errors) == (0, True, []), done
    facts = report["facts"]
    assert facts["job"] == {"nodes": 2, "procs": 1, "device": "cpu", "launcher": "kubernetes"}
    hosts = {node["host"] for node in facts["nodes"]}
    assert len(hosts) == 2, "each pod has said who it is"
    assert {(peer["node"], peer["peer"]) for peer in facts["peers"]} == {(0, 1), (1, 0)}
    assert facts["shared_files"][0]["stale"] is False
    assert {tuple(link["nodes"]) for link in facts["links"]} == {(0, 1), (1, 0)}
    on_pods = on_volume(cluster, "doctor-1").run
    assert (on_pods.doctor / "node-1.json").is_file(), "each pod writes into the run volume"
    again = verb(tmp_path, "doctor", "--of", "doctor-1", "--json")
    assert json.loads(again.stdout)["findings"] == report["findings"], again
