"""Jobs of each --kind, as tests look at them: the operator, the top object, its pods."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from k8s_cluster import KubernetesCluster
from k8s_jobset_children import JOB_SETS
from k8s_objects import EVENTS, Manifest, Resource, find_condition, is_true
from k8s_pods import Pod
from k8s_runs import Run, submit
from k8s_trainjobs import TRAIN_JOBS
from k8s_volcano_pods import VC_JOBS

from dist_train import env


@dataclass(frozen=True)
class Form:
    """One --kind.

    Attributes:
        operator: what must be installed.
        top: the object that is the job.
        made: the requests of a launch, in order.
    """

    kind: str
    operator: str
    top: Resource
    made: tuple[str, ...]

    def __str__(self) -> str:
        return self.kind


JOBSET = Form("jobset", "jobset", JOB_SETS, ("configmaps", "jobsets"))
TRAINJOB = Form("trainjob", "trainer", TRAIN_JOBS, ("configmaps", "trainingruntimes", "trainjobs"))
VOLCANO = Form("volcano", "volcano", VC_JOBS, ("configmaps", "jobs"))
FORMS = (JOBSET, TRAINJOB, VOLCANO)


@dataclass(frozen=True)
class KindRun:
    """A run of one form on a cluster."""

    cluster: KubernetesCluster
    form: Form
    name: str

    @property
    def top(self) -> Manifest:
        """Its top object."""
        return self.cluster.store.get(self.form.top, "default", self.name)

    @property
    def end(self) -> str:
        """`Completed`, `Failed: ReachedMaxRestarts`, `Terminated`; empty while it goes on."""
        status = self.top.get("status") or {}
        if self.form is VOLCANO:
            phase = str((status.get("state") or {}).get("phase", ""))
            return phase if phase in ("Completed", "Failed", "Terminated", "Aborted") else ""
        for kind in ("Completed", "Complete"):
            if is_true(self.top, kind):
                return "Completed"
        failed = find_condition(self.top, "Failed")
        return f"Failed: {failed['reason']}" if failed is not None else ""

    @property
    def restarts(self) -> int:
        """Of the whole gang, as its controller counts them."""
        job_set = self.cluster.store.find(JOB_SETS, "default", self.name) or self.top
        status = job_set.get("status") or {}
        return int(status.get("restarts") or status.get("retryCount") or 0)

    def pod(self, node: int) -> Pod:
        """The newest pod of a node."""
        found = [pod for pod in self.cluster.pods() if node_of(pod) == node]
        assert found, f"no pod of node {node}: {self.cluster}"
        return found[-1]

    def wait_end(self, end: str, within_s: float = 60) -> None:
        """Until it has ended so; another end fails at once."""
        self.cluster.wait_for(lambda: self.end != "", f"{self.name} is {end}", within_s)
        assert self.end == end, f"{self.top['status']}\n{self.cluster}"


def node_of(pod: Pod) -> int:
    """The index that a Job gives; of a vcjob's pod the node rank that it was rendered with."""
    if pod.index >= 0:
        return pod.index
    [agent] = pod.manifest["spec"]["containers"]
    return next(int(one["value"]) for one in agent["env"] if one["name"] == env.NODE_RANK)


def begin(
    cluster: KubernetesCluster, folder: Path, form: Form, name: str, *words: object
) -> tuple[KindRun, Run]:
    """`launch --detach` of this kind: the job, and what its pods write."""
    return KindRun(cluster, form, name), submit(cluster, folder, name, "--kind", form.kind, *words)


def left_of(cluster: KubernetesCluster) -> list[str]:
    """All that there is beside a cluster's own."""
    own = ("namespaces", "nodes", "persistentvolumeclaims", "queues.scheduling.volcano.sh", EVENTS.name)
    return [
        f"{resource.name} {obj['metadata']['name']}"
        for resource, obj in cluster.store.everything()
        if resource.name not in own
    ]
