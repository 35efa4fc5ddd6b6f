"""The API kinds that a job consists of or that show its state, and their paths on the API server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dist_train.errors import ConfigError

Body = dict[str, Any]  # an object as the API has it


@dataclass(frozen=True)
class Kind:
    """One kind of the API; `needs`: what must be installed for it."""

    api_version: str
    kind: str
    plural: str
    needs: str = ""
    namespaced: bool = True

    @property
    def group(self) -> str:
        """`batch` of batch/v1; empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def full_name(self) -> str:
        """The name for kubectl: `services`, `jobs.batch`, `jobsets.jobset.x-k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def root(self) -> str:
        """The path of its API group and version."""
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"


NAMESPACE = Kind("v1", "Namespace", "namespaces", namespaced=False)
CLAIM = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
POD = Kind("v1", "Pod", "pods")
EVENT = Kind("v1", "Event", "events")
SERVICE = Kind("v1", "Service", "services")
CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps")
NETWORK_POLICY = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
JOB = Kind("batch/v1", "Job", "jobs")
JOB_SET = Kind("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets", "JobSet (https://jobset.sigs.k8s.io)")
VOLCANO_JOB = Kind("batch.volcano.sh/v1alpha1", "Job", "jobs", "Volcano (https://volcano.sh)")
TRAIN_JOB = Kind(
    "trainer.kubeflow.org/v1alpha1", "TrainJob", "trainjobs", "Kubeflow Trainer v2 (https://www.kubeflow.org)"
)
TRAINING_RUNTIME = Kind(
    "trainer.kubeflow.org/v1alpha1", "TrainingRuntime", "trainingruntimes", TRAIN_JOB.needs
)
# The queues that admit a job, and whose conditions tell why not yet: Kueue (two API versions), Volcano.
WORKLOADS = (
    Kind("kueue.x-k8s.io/v1beta2", "Workload", "workloads", "Kueue"),
    Kind("kueue.x-k8s.io/v1beta1", "Workload", "workloads", "Kueue"),
)
LOCAL_QUEUES = (
    Kind("kueue.x-k8s.io/v1beta2", "LocalQueue", "localqueues", "Kueue"),
    Kind("kueue.x-k8s.io/v1beta1", "LocalQueue", "localqueues", "Kueue"),
)
POD_GROUP = Kind("scheduling.volcano.sh/v1beta1", "PodGroup", "podgroups", "Volcano")
VOLCANO_QUEUE = Kind("scheduling.volcano.sh/v1beta1", "Queue", "queues", "Volcano", namespaced=False)

# `--kind` -> the kind of the job object.
JOB_KINDS = {"job": JOB, "jobset": JOB_SET, "volcano": VOLCANO_JOB, "trainjob": TRAIN_JOB}
# Objects that support the job, and are removed with it.
SUPPORT_KINDS = (SERVICE, CONFIG_MAP, NETWORK_POLICY)
_ALL = (*SUPPORT_KINDS, *JOB_KINDS.values(), TRAINING_RUNTIME)


def support_kinds(kind: str) -> tuple[Kind, ...]:
    """The kinds that a job of this `--kind` may have created besides the job object."""
    return (*SUPPORT_KINDS, TRAINING_RUNTIME) if kind == "trainjob" else SUPPORT_KINDS


def kind_of(body: Mapping[str, Any]) -> Kind:
    """The kind of a rendered manifest; raises ConfigError for one that this launcher does not submit."""
    for kind in _ALL:
        if (kind.api_version, kind.kind) == (body.get("apiVersion"), body.get("kind")):
            return kind
    raise ConfigError(
        f"the plan holds a {body.get('kind')} of {body.get('apiVersion')}, which dist-train does not submit",
        hint="plan/ was changed by hand: launch again",
    )
