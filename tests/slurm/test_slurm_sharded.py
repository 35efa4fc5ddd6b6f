"""A sharded model on Slurm: the same command, the local run's bits."""

from __future__ import annotations

from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster
from slurm_runs import TWO_BY_TWO, SlurmRun, launch

from dist_train.rundir import RunDir

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300), pytest.mark.proof]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "language_model.yaml"
SHORT = (
    "trainer.epochs=null",
    "trainer.steps=12",
    "trainer.accumulate=4",
    "checkpoint.every_epochs=null",
    "checkpoint.every_steps=6",
)


@pytest.mark.proves(
    "The language model, spread over 2 nodes x 2 ranks by fsdp, hsdp, tensor_parallel, "
    "fsdp_tensor_parallel and pipeline on Slurm, ends with the local bits",
)
@pytest.mark.parametrize("strategy", ["fsdp", "hsdp", "tensor_parallel", "fsdp_tensor_parallel", "pipeline"])
def test_the_language_model_ends_with_the_local_runs_bits(
    slurm: SlurmCluster, tmp_path: Path, strategy: str
) -> None:
    words = (*TWO_BY_TWO, EXAMPLE, f"strategy={strategy}", *SHORT)
    here = launch(tmp_path, "here", *words, launcher="local")
    there = launch(tmp_path, "there", *words)
    assert here.code == 0, here
    assert there.code == 0, there
    local, remote = (SlurmRun(slurm, RunDir(tmp_path / "runs" / name)) for name in ("here", "there"))
    assert remote.hashes == local.hashes
