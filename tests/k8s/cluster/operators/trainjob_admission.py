"""Webhooks of TrainJobs and TrainingRuntimes; they refuse with 403.

https://github.com/kubeflow/trainer/tree/master/pkg/webhooks
"""

from __future__ import annotations

from collections.abc import Callable

from cluster.api.errors import ApiError
from cluster.api.store import Store
from cluster.objects import Manifest, Resource
from cluster.operators.trainjobs import NODE, RUNTIMES, STEP, TRAIN_JOBS

_RESERVED = ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")


def admit_train_job(store: Store) -> Callable[[Resource, Manifest, Callable[[str], None]], None]:
    """Webhooks of both kinds, for Store.admission."""

    def admit(resource: Resource, obj: Manifest, warn: Callable[[str], None]) -> None:
        if resource == RUNTIMES:
            _check_runtime(obj)
        if resource == TRAIN_JOBS:
            _check_train_job(store, obj)

    return admit


def _check_runtime(obj: Manifest) -> None:
    for replicated in obj["spec"]["template"]["spec"]["replicatedJobs"]:
        labels = (replicated["template"].get("metadata") or {}).get("labels") or {}
        names = [one["name"] for one in replicated["template"]["spec"]["template"]["spec"]["containers"]]
        if labels.get(STEP) != "trainer":
            continue
        if replicated.get("replicas", 1) != 1:
            raise _denied("trainingruntime", "spec.template.spec.replicatedJobs.replicas: always must be 1")
        if NODE not in names:
            raise _denied("trainingruntime", "must contain the required container for the ancestor: trainer")


def _check_train_job(store: Store, obj: Manifest) -> None:
    name = obj["spec"]["runtimeRef"]["name"]
    runtime = store.find(RUNTIMES, obj["metadata"]["namespace"], name)
    if runtime is None:
        raise runtime_unknown(name)
    names = {variable["name"] for variable in (obj["spec"].get("trainer") or {}).get("env") or ()}
    reserved = sorted(names.intersection(_RESERVED))
    if reserved and "torch" in (runtime["spec"].get("mlPolicy") or {}):
        raise _denied("trainjob", f"spec.trainer.env: must not have reserved envs: {reserved}")


def runtime_unknown(name: str) -> ApiError:
    """Error of the TrainJob's webhook: the runtime does not exist, or is not yet in its cache."""
    return _denied(
        "trainjob",
        f'spec.runtimeRef: Invalid value: "{name}": TrainingRuntime.trainer.kubeflow.org "{name}" not found: '
        "specified trainingRuntime must be created before the TrainJob is created",
    )


def _denied(kind: str, why: str) -> ApiError:
    webhook = f"validator.{kind}.trainer.kubeflow.org"
    return ApiError(403, "Forbidden", f'admission webhook "{webhook}" denied the request: {why}')
