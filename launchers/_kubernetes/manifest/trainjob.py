"""`--kind trainjob`: Kubeflow Trainer v2, by a TrainingRuntime of our own and a TrainJob that names it.

The runtime has no torch policy: its controller then adds none of its PET_* variables, which would tell
the agent nothing that it does not know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dist_train.jobs import JobSpec
from launchers._kubernetes.manifest.beside import metadata
from launchers._kubernetes.manifest.job import queued, time_limit
from launchers._kubernetes.manifest.jobset import jobset_spec
from launchers._kubernetes.manifest.names import labels, object_name
from launchers._kubernetes.manifest.options import Options

if TYPE_CHECKING:
    from torchx.specs import AppDef

_API = "trainer.kubeflow.org"
# Tells the controller which of the runtime's jobs is the training itself.
_STEP = {f"{_API}/trainjob-ancestor-step": "trainer"}


def training_runtime(app: AppDef, spec: JobSpec, options: Options) -> dict[str, Any]:
    """The whole JobSet as a template; the TrainJob that it becomes is called as the run."""
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
    """The top object; all that is run stands in the runtime."""
    return {
        "apiVersion": f"{_API}/v1alpha1",
        "kind": "TrainJob",
        "metadata": queued(metadata(spec, options), options),
        "spec": {
            "runtimeRef": {"apiGroup": _API, "kind": "TrainingRuntime", "name": object_name(spec)},
            # As the runtime has it: here it is in sight of who looks at the job alone.
            "trainer": {"numNodes": spec.nodes},
            **time_limit(spec),
        },
    }
