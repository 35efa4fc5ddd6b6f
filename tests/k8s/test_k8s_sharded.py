"""A sharded model in pods: the same command, the local run's bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.harness.runs import TWO_BY_TWO, launch, local, on_volume, workspace
from cluster.kubernetes_cluster import KubernetesCluster

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
    "The language model, spread over 2 pods x 2 ranks by fsdp, hsdp, tensor_parallel, "
    "fsdp_tensor_parallel and pipeline, ends with the local run's bits",
    limits="an emulated Kubernetes whose pods are real processes",
)
@pytest.mark.parametrize("strategy", ["fsdp", "hsdp", "tensor_parallel", "fsdp_tensor_parallel", "pipeline"])
def test_the_language_model_ends_with_the_local_runs_bits(
    cluster: KubernetesCluster, tmp_path: Path, strategy: str
) -> None:
    workspace(cluster, tmp_path, EXAMPLE)
    words = (f"strategy={strategy}", *SHORT)
    done = launch(tmp_path, "sharded", "--run-id", "sharded-1", *TWO_BY_TWO, EXAMPLE.name, *words)
    assert done.code == 0, done
    base = local(tmp_path / "local", "base", *TWO_BY_TWO, EXAMPLE, *words)
    assert on_volume(cluster, "sharded").hashes == base.hashes
