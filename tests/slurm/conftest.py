"""Slurm clusters for tests: real daemons, one cluster per pytest worker, clean for every test.

    def test_it(slurm: SlurmCluster) -> None: ...                    # four nodes on this host
    def test_it(slurm_accounting: SlurmCluster) -> None: ...         # with sacct
    def test_it(slurm_namespaces: NamespaceCluster) -> None: ...     # nodes in namespaces

SLURM_CONF is that cluster's while the test runs. The clusters are started on first use and run until
the end of the session; their daemons are children of process 1 without the test's environment.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
import slurm_accounting as accounting
import slurm_cluster
import slurm_namespaces as namespaces
from slurm_cluster import SlurmCluster
from slurm_config import ClusterSettings
from slurm_namespaces import NamespaceCluster
from slurm_runs import SLOW, TWO_BY_ONE, TWO_BY_TWO, Hashes, SlurmRun, launch
from slurm_warm_tasks import COLD_TASKS, WarmCluster
from warm_commands.once_for_all_workers import once_for_all_workers

from dist_train.rundir import RunDir
from dist_train.testing.plugin import require

C = TypeVar("C", bound=SlurmCluster)


def require_binaries(names: Sequence[str]) -> None:
    """Fail, or skip where that is allowed, when a program is not installed."""
    missing = [name for name in names if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if missing:
        require("slurm", f"not installed: {' '.join(missing)} (.ci/debian-packages.txt)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Longest first: else one worker ends with them while the others have nothing to do."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session")
def slurm_session() -> Iterator[SlurmCluster]:
    """Cluster of this pytest worker, which SLURM_CONF names for the whole session."""
    require_binaries(slurm_cluster.BINARIES)
    with WarmCluster(ClusterSettings(warm_tasks=True)) as cluster, pytest.MonkeyPatch.context() as patch:
        set_variables(patch, cluster)
        yield cluster


@pytest.fixture(scope="session")
def slurm_accounting_session() -> Iterator[SlurmCluster]:
    """A cluster with a database, slurmdbd and sacct."""
    require_binaries([*slurm_cluster.BINARIES, *accounting.BINARIES])
    with WarmCluster(ClusterSettings(accounting=True, warm_tasks=True)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def slurm_namespaces_session() -> Iterator[NamespaceCluster]:
    """A cluster with nodes in namespaces; one that does not respond is DOWN later than our 30 s."""
    require_binaries([*slurm_cluster.BINARIES, *namespaces.BINARIES])
    if os.geteuid() != 0:
        require("slurm", "nodes in network namespaces need root")
    with NamespaceCluster(ClusterSettings(slurmd_timeout_s=50)) as cluster:
        yield cluster


@pytest.fixture
def slurm(slurm_session: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """Four idle nodes, no jobs."""
    yield from lend(slurm_session, monkeypatch)


@pytest.fixture
def slurm_accounting(
    slurm_accounting_session: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlurmCluster]:
    """As `slurm`, with sacct."""
    yield from lend(slurm_accounting_session, monkeypatch)


@pytest.fixture
def slurm_namespaces(
    slurm_namespaces_session: NamespaceCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[NamespaceCluster]:
    """As `slurm`, with nodes in namespaces; put `slurm_namespaces.prefix` before commands."""
    yield from lend(slurm_namespaces_session, monkeypatch)


@pytest.fixture
def cold_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents and ranks of this test's jobs are new interpreters, children of slurmstepd."""
    for name, value in COLD_TASKS.items():
        monkeypatch.setenv(name, value)


def lend(cluster: C, patch: pytest.MonkeyPatch) -> Iterator[C]:
    """Set the environment for one test; clean the cluster afterwards."""
    set_variables(patch, cluster)
    yield cluster
    cluster.clean()


def set_variables(patch: pytest.MonkeyPatch, cluster: SlurmCluster) -> None:
    """Set the environment of child processes to use this cluster."""
    for name, value in cluster.environ.items():
        patch.setenv(name, value)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Hashes:
    """The three hashes of the local 2 x 2 run."""
    return local_hashes(tmp_path_factory, "2x2", TWO_BY_TWO)


@pytest.fixture(scope="session")
def undisturbed_pair(tmp_path_factory: pytest.TempPathFactory) -> Hashes:
    """The three hashes of the local 2 x 1 run."""
    return local_hashes(tmp_path_factory, "2x1", TWO_BY_ONE)


def local_hashes(factory: pytest.TempPathFactory, name: str, shape: Sequence[str]) -> Hashes:
    """Hashes of a local run without faults; computed once for all pytest workers."""

    def run(folder: Path) -> Hashes:
        done = launch(folder, "base", *shape, SLOW, launcher="local")
        assert done.code == 0, done
        return SlurmRun(None, RunDir(folder / "runs" / "base")).hashes  # type: ignore[arg-type]

    one, two, three = once_for_all_workers(factory, f"undisturbed-{name}", run)
    return one, two, three
