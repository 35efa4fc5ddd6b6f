"""Emulated Kubernetes clusters for tests: a new one for each test, removed after it (see cluster/README.md).

    def test_it(cluster: KubernetesCluster) -> None: ...           # pods are real processes; needs root
    def test_it(control_plane: KubernetesCluster) -> None: ...     # API server and controllers, no nodes
    @pytest.mark.parametrize("cluster", [ClusterSettings(nodes=3)], indirect=True)   # other settings

KUBECONFIG names that cluster while the test runs.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace

import pytest
from warm_commands.once_for_all_workers import once_for_all_workers
from warm_commands.warm_containers import fork_agent

from cluster.harness.clients import Clients
from cluster.harness.runs import SLOW, TWO_BY_ONE, Hashes, local
from cluster.kubernetes_cluster import ClusterSettings, KubernetesCluster
from cluster.nodes import sandbox
from cluster.nodes.network import BINARIES
from dist_train.testing.plugin import require

sandbox.fork_container = functools.partial(fork_agent, sandbox.PROGRAM)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Longest first: else one worker ends with them while the others have nothing to do."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesCluster]:
    """Two nodes, the claim `runs`, no objects."""
    missing = [name for name in BINARIES if shutil.which(name) is None]
    if missing:
        require("k8s", f"not installed: {' '.join(missing)} (.ci/debian-packages.txt)")
    if os.geteuid() != 0:
        require("k8s", "pods in namespaces need root")
    yield from lend(getattr(request, "param", ClusterSettings()), monkeypatch)


@pytest.fixture
def control_plane(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[KubernetesCluster]:
    """As `cluster`, but without kubelet: the test sets the status of pods."""
    settings = getattr(request, "param", ClusterSettings())
    yield from lend(replace(settings, run_pods=False), monkeypatch)


@pytest.fixture
def clients(control_plane: KubernetesCluster) -> Iterator[Clients]:
    """The official client of a control plane."""
    made = Clients(control_plane)
    yield made
    made.api.close()


def lend(settings: ClusterSettings, patch: pytest.MonkeyPatch) -> Iterator[KubernetesCluster]:
    """Start a cluster and set the environment for one test."""
    with KubernetesCluster(settings) as made:
        for name, value in made.environ.items():
            patch.setenv(name, value)
        yield made


@pytest.fixture(scope="session")
def undisturbed_pair(tmp_path_factory: pytest.TempPathFactory) -> Hashes:
    """The three hashes of the local 2 x 1 run, computed once for all pytest workers."""
    one, two, three = once_for_all_workers(
        tmp_path_factory, "undisturbed", lambda folder: local(folder, "base", *TWO_BY_ONE, SLOW).hashes
    )
    return one, two, three
