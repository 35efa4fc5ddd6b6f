"""The pod that runs a command beside a job: like the run's own, small, and counted as nobody's."""

from __future__ import annotations

import pytest
from kubernetes_plans import IMAGE, options_with
from slurm_stand_ins import Job

from dist_train.errors import UnavailableError
from launchers._kubernetes.manifest.names import RUN_LABEL
from launchers._kubernetes.runner.volume_command import beside_spec, manifest, run_beside
from launchers._kubernetes.state.handles import Job as JobReference

WORDS = ("-P", "-m", "a_module", "/runs/big")


@pytest.mark.parametrize("kind", ["job", "jobset", "volcano", "trainjob"])
def test_a_small_pod_with_the_runs_image_and_volume(job: Job, kind: str) -> None:
    run = job(nodes=8, procs_per_node=8, device="cuda")
    options = options_with(kind=kind, run_volume="pvc/shared:team", queue="gold", rdma=True, fs_group=1000)
    beside = beside_spec(run)
    found = manifest(beside, options, WORDS)
    assert found["kind"] == "Job"
    spec = found["spec"]
    assert (spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (1, 1, 0)
    assert spec["activeDeadlineSeconds"] + spec["ttlSecondsAfterFinished"] < 600, "it removes itself"
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert (container["image"], container["command"]) == (IMAGE, ["python", *WORDS])
    assert container["env"] == [{"name": "HOME", "value": "/tmp"}], "no secret, no agent's variable"
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["securityContext"]["fsGroup"] == 1000, "it may read the run's files"
    assert {"name": "runs", "mountPath": "/runs", "subPath": "team"} in container["volumeMounts"]
    assert found["metadata"]["labels"][RUN_LABEL] == beside.run_id != run.run_id
    is_queued = "kueue.x-k8s.io/queue-name" in found["metadata"]["labels"]
    assert is_queued == (kind != "volcano")


def test_a_run_without_a_claim_has_no_such_place(job: Job) -> None:
    reference = JobReference("job", "default", "big")
    with pytest.raises(UnavailableError, match="in its pod alone"):
        run_beside(None, reference, job(), options_with(run_volume="emptydir"), WORDS, 1.0)  # type: ignore[arg-type]
