"""Small schemas of the kinds that are not built in: their documented fields, as far as we use them.

Pod templates and Jobs inside them are left open here: they are checked by the built-in schemas.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_FLAG: Schema = {"type": "boolean"}
_OPEN: Schema = {"type": "object"}


def _object(*required: str, **properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": 1}


def _one_of(*values: str) -> Schema:
    return {"enum": list(values)}


def _top(api_version: str, kind: str, spec: Schema) -> Schema:
    head = {"apiVersion": {"const": api_version}, "kind": {"const": kind}}
    return _object("apiVersion", "kind", "metadata", "spec", **head, metadata=_OPEN, spec=spec)


# https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/
_JOB_SET_SPEC = _object(
    "replicatedJobs",
    network=_object(enableDNSHostnames=_FLAG, publishNotReadyAddresses=_FLAG, subdomain=_TEXT),
    failurePolicy=_object(
        maxRestarts=_COUNT,
        restartStrategy=_one_of("Recreate", "BlockingRecreate"),
        rules=_list(
            _object(
                "name",
                "action",
                name={"type": "string", "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
                action=_one_of("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"),
                onJobFailureReasons=_list(
                    _one_of("BackoffLimitExceeded", "DeadlineExceeded", "PodFailurePolicy")
                ),
            )
        ),
    ),
    replicatedJobs=_list(
        _object(
            "name",
            "template",
            name=_TEXT,
            replicas=_COUNT,
            template=_object("spec", metadata=_object(labels=_OPEN), spec=_OPEN),
        )
    ),
    suspend=_FLAG,
    ttlSecondsAfterFinished=_COUNT,
)
_JOB_SET = "jobset.x-k8s.io/v1alpha2"

# https://www.kubeflow.org/docs/components/trainer/
_TRAINER = "trainer.kubeflow.org/v1alpha1"
_RUNTIME_SPEC = _object(
    "template",
    mlPolicy=_object(numNodes=_COUNT),
    template=_object("spec", metadata=_object(labels=_OPEN), spec=_JOB_SET_SPEC),
)
_TRAIN_JOB_SPEC = _object(
    "runtimeRef",
    runtimeRef=_object("name", name=_TEXT, kind=_TEXT, apiGroup=_TEXT),
    trainer=_object(numNodes=_COUNT),
    activeDeadlineSeconds={"type": "integer", "minimum": 1},
    suspend=_FLAG,
)

# https://volcano.sh/en/docs/vcjob/
_ACTION = _one_of("AbortJob", "RestartJob", "RestartTask", "TerminateJob", "CompleteJob")
_VOLCANO = "batch.volcano.sh/v1alpha1"
_VOLCANO_SPEC = _object(
    "tasks",
    schedulerName=_TEXT,
    queue=_TEXT,
    priorityClassName=_TEXT,
    minAvailable=_COUNT,
    maxRetry=_COUNT,
    ttlSecondsAfterFinished=_COUNT,
    plugins={"type": "object", "additionalProperties": {"type": "array", "items": _TEXT}},
    policies=_list(
        {
            "oneOf": [
                _object("exitCode", "action", exitCode={"type": "integer", "minimum": 1}, action=_ACTION),
                _object(
                    "event",
                    "action",
                    event=_one_of("PodFailed", "PodEvicted", "TaskCompleted"),
                    action=_ACTION,
                ),
            ]
        }
    ),
    tasks=_list(
        _object(
            "name",
            "replicas",
            "template",
            name=_TEXT,
            replicas=_COUNT,
            minAvailable=_COUNT,
            template=_OPEN,
        )
    ),
)

SMALL: dict[tuple[str, str], Schema] = {
    (_JOB_SET, "JobSet"): _top(_JOB_SET, "JobSet", _JOB_SET_SPEC),
    (_TRAINER, "TrainingRuntime"): _top(_TRAINER, "TrainingRuntime", _RUNTIME_SPEC),
    (_TRAINER, "TrainJob"): _top(_TRAINER, "TrainJob", _TRAIN_JOB_SPEC),
    (_VOLCANO, "Job"): _top(_VOLCANO, "Job", _VOLCANO_SPEC),
}
