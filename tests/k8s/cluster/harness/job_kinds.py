"""Jobs of each --kind: operator, top-level object, state and pods of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cluster.harness.runs import Run, submit
from cluster.kubernetes_cluster import KubernetesCluster
from cluster.objects import EVENTS, Manifest, Resource, find_condition, is_true
from cluster.operators.jobset_children import JOB_SETS
from cluster.operators.trainjobs import TRAIN_JOBS
from cluster.operators.volcano_pods import VC_JOBS
from cluster.pod import Pod


@dataclass(frozen=True)
class JobKind:
    """One --kind.

    Attributes:
        operator: the operator that it needs.
        top: resource of the job's top-level object.
        created: resources that a launch creates, in order.
    """

    kind: str
    operator: str
    top: Resource
    created: tuple[str, ...]

    def __str__(self) -> str:
        return self.kind


JOBSET = JobKind("jobset", "jobset", JOB_SETS, ("configmaps", "jobsets"))
TRAINJOB = JobKind("trainjob", "trainer", TRAIN_JOBS, ("configmaps", "trainingruntimes", "trainjobs"))
VOLCANO = JobKind("volcano", "volcano", VC_JOBS, ("configmaps", "jobs"))
JOB_KINDS = (JOBSET, TRAINJOB, VOLCANO)


@dataclass(frozen=True)
class KindRun:
    """A run of one kind on a cluster."""

    cluster: KubernetesCluster
    kind: JobKind
    name: str

    @property
    def top(self) -> Manifest:
        """Its top-level object."""
        return self.cluster.store.get(self.kind.top, "default", self.name)

    @property
    def end(self) -> str:
        """Result: `Completed`, `Failed: ReachedMaxRestarts`, `Terminated`; empty until it has finished."""
        status = self.top.get("status") or {}
        if self.kind is VOLCANO:
            phase = str((status.get("state") or {}).get("phase", ""))
            return phase if phase in ("Completed", "Failed", "Terminated", "Aborted") else ""
        for kind in ("Completed", "Complete"):
            if is_true(self.top, kind):
                return "Completed"
        failed = find_condition(self.top, "Failed")
        return f"Failed: {failed['reason']}" if failed is not None else ""

    @property
    def restarts(self) -> int:
        """Number of restarts, as its controller counts them."""
        job_set = self.cluster.store.find(JOB_SETS, "default", self.name) or self.top
        status = job_set.get("status") or {}
        return int(status.get("restarts") or status.get("retryCount") or 0)

    def pod(self, node: int) -> Pod:
        """Newest pod of a node."""
        found = [pod for pod in self.cluster.pods() if node_of(pod) == node]
        assert found, f"no pod of node {node}: {self.cluster}"
        return found[-1]

    def wait_end(self, end: str, within_s: float = 60) -> None:
        """Wait until it has finished with this result; another result fails at once."""
        self.cluster.wait_for(lambda: self.end != "", f"{self.name} is {end}", within_s)
        assert self.end == end, f"{self.top['status']}\n{self.cluster}"


def node_of(pod: Pod) -> int:
    """Node rank of a pod: its completion index, for vcjobs the one of its task."""
    if pod.index >= 0:
        return pod.index
    [agent] = pod.manifest["spec"]["containers"]
    return next(int(one["value"]) for one in agent["env"] if one["name"] == "VC_TASK_INDEX")


def submit_kind(
    cluster: KubernetesCluster, folder: Path, kind: JobKind, name: str, *options: object
) -> tuple[KindRun, Run]:
    """`launch --detach` of a kind; returns the job and its run."""
    return KindRun(cluster, kind, name), submit(cluster, folder, name, "--kind", kind.kind, *options)


def remaining_objects(cluster: KubernetesCluster) -> list[str]:
    """Objects besides those of an empty cluster."""
    initial = ("namespaces", "nodes", "persistentvolumeclaims", "queues.scheduling.volcano.sh", EVENTS.name)
    return [
        f"{resource.name} {obj['metadata']['name']}"
        for resource, obj in cluster.store.everything()
        if resource.name not in initial
    ]
