"""`--kind trainjob`: Kubeflow Trainer v2, by a TrainingRuntime of our own and a TrainJob that refers to it.

The runtime has no torch policy, so that its controller adds none of its PET_* variables, which the agent does
not need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dist_train.jobs import JobSpec
from launchers._kubernetes.manifest.indexed_job import queued, time_limit
from launchers._kubernetes.manifest.jobset import jobset_spec
from launchers._kubernetes.manifest.kubernetes_options import Options
from launchers._kubernetes.manifest.names import labels, object_name
from launchers._kubernetes.manifest.support_objects import metadata

if TYPE_CHECKING:
    from torchx.specs import AppDef

_API = "trainer.kubeflow.org"
# Marks the runtime's job that is the training itself, for the controller.
_STEP = {f"{_API}/trainjob-ancestor-step": "trainer"}


def training_runtime(app: AppDef, spec: JobSpec, options: Options) -> dict[str, Any]:
    """Render the TrainingRuntime: the whole JobSet as a template."""
    return {
        "apiVersion": f"{_API}/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": metadata(spec, options),
        "spec": {
            "mlPolicy": {"numNodes": spec.nodes},
            "template": {
                "metadata": {"labels": labels(spec)},
                # The TrainJob has the time limit, over all its restarts.
                "spec": jobset_spec(app, spec, options, limit={}, step_labels=_STEP),
            },
        },
    }


def trainjob(spec: JobSpec, options: Options) -> dict[str, Any]:
    """Render the job object; what runs is in the runtime."""
    return {
        "apiVersion": f"{_API}/v1alpha1",
        "kind": "TrainJob",
        "metadata": queued(metadata(spec, options), options),
        "spec": {
            "runtimeRef": {"apiGroup": _API, "kind": "TrainingRuntime", "name": object_name(spec)},
            # The same as in the runtime: visible here in the TrainJob alone.
            "trainer": {"numNodes": spec.nodes},
            **time_limit(spec),
        },
    }
