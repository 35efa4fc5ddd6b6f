"""Pods that run a small program, for the cluster's own tests."""

from __future__ import annotations

import textwrap
from typing import Any

from k8s_cluster import KubernetesCluster
from k8s_manifests import container, job
from k8s_objects import JOBS, Manifest
from k8s_pods import Pod

RUNS = {"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}
IN_RUNS = {"name": "runs", "mountPath": "/runs"}
SLEEP = "import signal; print('ready', flush=True); signal.pause()"


def python(code: str, **more: object) -> Manifest:
    """A container that runs this program."""
    return container("python", "-c", textwrap.dedent(code), **more)


def submit(cluster: KubernetesCluster, *containers: Manifest, **words: Any) -> None:
    """A Job of such containers."""
    cluster.store.create(JOBS, "default", job("train", containers=containers, **words))


def run(cluster: KubernetesCluster, code: str, **words: Any) -> Pod:
    """One pod to its end."""
    more = words.pop("more", {})
    submit(cluster, python(code, **more), completions=1, policy=None, backoff_limit=0, **words)
    cluster.wait_for(lambda: cluster.verdict() != "", "the Job ends")
    return cluster.pod(0)
