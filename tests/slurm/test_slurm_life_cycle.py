"""The life of a job on any Slurm cluster: submit, follow, logs, a killed rank, preempted, cancelled, resumed.

`make test-slurm-site PARTITION=…` runs this file on a site's own cluster; here it runs on the cluster that
the tests start. All runs of it end with the same three hashes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import lend
from site_runs import SLOW, SLOWLY, Site, jobs_of, scancel
from slurm_cluster import SlurmCluster

from dist_train.errors import ExitCode

pytestmark = [pytest.mark.multiprocess, pytest.mark.proof, pytest.mark.timeout(7200)]
Hashes = tuple[str, str, str]
STEPS = "trainer.steps=60"


@pytest.fixture(scope="session")
def own_cluster(request: pytest.FixtureRequest) -> SlurmCluster | None:
    """The tests' own cluster; None where variables name a site."""
    if Site.of_environ(os.environ) is not None:
        return None
    cluster = request.getfixturevalue("slurm_session")
    assert isinstance(cluster, SlurmCluster)
    return cluster


@pytest.fixture
def site(own_cluster: SlurmCluster | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """The site that is named by variables, else the tests' own cluster."""
    if own_cluster is None:
        named = Site.of_environ(os.environ)
        assert named is not None
        yield named
        return
    folder = tmp_path / "site-test"
    folder.mkdir()
    for _ in lend(own_cluster, monkeypatch):
        yield Site(folder, "main")


@pytest.fixture(scope="session")
def known() -> dict[str, Hashes]:
    """The hashes of the first run that has ended."""
    return {}


def check_hashes(known: dict[str, Hashes], found: Hashes) -> None:
    """All runs of one site end with the same bits."""
    assert known.setdefault("first", found) == found, "machines of unlike processors? Take a constraint"


@pytest.mark.proves("`make test-slurm-site` runs the life of a job on a site's own Slurm cluster")
def test_a_job_is_followed_to_its_end_and_has_logs(site: Site, known: dict[str, Hashes]) -> None:
    done = site.launch("followed", SLOW, STEPS)
    assert done.code == 0, done
    run = site.run("followed")
    assert "step 60/60" in done.stdout, "launch shows what rank 0 prints"
    assert run.verb("status", "--exit-code").code == 0
    for rank in ("0", "1"):
        log = run.verb("logs", "--rank", rank)
        assert log.code == 0, log
    check_hashes(known, run.hashes)


def test_a_killed_rank_is_started_again(site: Site, known: dict[str, Hashes]) -> None:
    done = site.launch("killed", "--env", "DIST_TRAIN_INJECT=kill:rank=1,step=30", SLOW, STEPS)
    assert done.code == 0, done
    run = site.run("killed")
    assert len(run.resume_steps()) == 2, "one attempt more"
    check_hashes(known, run.hashes)


def test_a_notice_of_the_scheduler_saves_and_the_job_goes_on(site: Site, known: dict[str, Hashes]) -> None:
    run = site.submit("preempted", *SLOWLY, SLOW, STEPS)
    run.wait_for_step(10)
    scancel("--signal=TERM", run.job_id)
    state = run.wait_end()
    if state.exit_code == ExitCode.PREEMPTED:  # a site that refuses the requeue
        assert "dist-train resume" in run.console()
        resumed = run.verb("resume")
        assert resumed.code == 0, resumed
    first, second = run.resume_steps()
    assert first is None
    assert second is not None
    assert second >= 10
    check_hashes(known, run.hashes)


def test_a_cancelled_job_saves_and_resume_ends_alike(site: Site, known: dict[str, Hashes]) -> None:
    run = site.submit("cancelled", *SLOWLY, SLOW, STEPS)
    run.wait_for_step(10)
    first = run.job_id
    assert run.verb("cancel").code == 0
    assert run.wait_end().exit_code == ExitCode.CANCELLED
    resumed = run.verb("resume", "--detach")
    assert resumed.code == 0, resumed
    assert run.job_id != first
    assert run.wait_end().exit_code == 0, run.console()
    check_hashes(known, run.hashes)


def test_no_job_is_left_in_the_queue(site: Site) -> None:
    held = site.submit("held", "--sbatch-arg", "begin=now+1hour", SLOW, STEPS)
    assert held.job_id in jobs_of(site.folder.name)
    assert held.verb("cancel").code == 0
    held.wait_end()
    left = jobs_of(site.folder.name)
    assert left == {}
    shutil.rmtree(held.directory.path)
