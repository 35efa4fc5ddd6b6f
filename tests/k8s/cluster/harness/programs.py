"""Pods that run a small Python program, for the emulator's own tests."""

from __future__ import annotations

import textwrap
from typing import Any

from cluster.harness.manifests import container, job
from cluster.kubernetes_cluster import KubernetesCluster
from cluster.objects import JOBS, Manifest
from cluster.pod import Pod

RUNS = {"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}
IN_RUNS = {"name": "runs", "mountPath": "/runs"}
SLEEP = "import signal; print('ready', flush=True); signal.pause()"


def python(code: str, **more: object) -> Manifest:
    """A container that runs a program."""
    return container("python", "-c", textwrap.dedent(code), **more)


def submit(cluster: KubernetesCluster, *containers: Manifest, **options: Any) -> None:
    """Create a Job of these containers."""
    cluster.store.create(JOBS, "default", job("train", containers=containers, **options))


def run(cluster: KubernetesCluster, code: str, **options: Any) -> Pod:
    """Run a program in one pod to its end."""
    more = options.pop("more", {})
    submit(cluster, python(code, **more), completions=1, policy=None, backoff_limit=0, **options)
    cluster.wait_for(lambda: cluster.job_result() != "", "the Job ends")
    return cluster.pod(0)
