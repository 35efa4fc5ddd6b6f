"""Objects of a vcjob: pods with Volcano's annotations, and the additions of its plugins svc and env.

By https://volcano.sh/en/docs/vcjob/ and, where that is silent, pkg/controllers/job of the project.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

from cluster.api.store import Store
from cluster.objects import CONFIG_MAPS, OPERATORS, SERVICES, Manifest, Resource
from cluster.operators.jobset_children import owner_ref

VC_JOBS, POD_GROUPS, QUEUES = OPERATORS["volcano"]
POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", has_status=False)
GROUP = "scheduling.k8s.io/group-name"
TASK, VERSION = "volcano.sh/task-spec", "volcano.sh/job-version"
_JOB, _NAMESPACE = "volcano.sh/job-name", "volcano.sh/job-namespace"
_HOSTS = "/etc/volcano"


def group_name(job: Manifest) -> str:
    """Name of the job's PodGroup."""
    return f"{job['metadata']['name']}-{job['metadata']['uid']}"


def pod_name(job: Manifest, task: Manifest, index: int) -> str:
    """`<job>-<task>-<index>`: the same after every restart."""
    return f"{job['metadata']['name']}-{task['name']}-{index}"


def new_pod(job: Manifest, task: Manifest, index: int) -> Manifest:
    """Build a pod for the job's current version."""
    template, spec = copy.deepcopy(task["template"]), job["spec"]
    head = template.get("metadata") or {}
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    labels = {"volcano.sh/task-index": str(index), TASK: task["name"], _JOB: name}
    labels |= {"volcano.sh/queue-name": spec["queue"]}
    status = job["status"]
    head["labels"] = {**(head.get("labels") or {}), **labels, _NAMESPACE: namespace}
    head["annotations"] = {
        **(head.get("annotations") or {}),
        **labels,
        GROUP: group_name(job),
        VERSION: str(status.get("version", 0)),
        "volcano.sh/template-uid": f"{name}-{task['name']}",
        "volcano.sh/job-retry-count": str(status.get("retryCount", 0)),
    }
    head |= {"name": pod_name(job, task, index), "ownerReferences": [owner_ref(job)]}
    pod = {"metadata": head, "spec": template["spec"]}
    pod["spec"].setdefault("schedulerName", spec["schedulerName"])
    if "env" in (spec.get("plugins") or {}):
        _add_env(pod, [{"name": key, "value": str(index)} for key in ("VK_TASK_INDEX", "VC_TASK_INDEX")])
    if "svc" in (spec.get("plugins") or {}):
        _add_hosts(job, pod)
    return pod


def _add_env(pod: Manifest, variables: list[Manifest]) -> None:
    for container in [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]:
        container["env"] = [*(container.get("env") or []), *copy.deepcopy(variables)]


def _add_hosts(job: Manifest, pod: Manifest) -> None:
    """Plugin svc: a DNS name, and the names of all pods in variables and files."""
    name = _hosts_name(job)
    pod["spec"].setdefault("hostname", pod["metadata"]["name"])
    pod["spec"].setdefault("subdomain", job["metadata"]["name"])
    keys = [key for key, _ in _hosts(job) if key.startswith("VC_")]
    refs = [{"name": key, "valueFrom": {"configMapKeyRef": {"name": name, "key": key}}} for key in keys]
    _add_env(pod, refs)
    pod["spec"]["volumes"] = [
        *(pod["spec"].get("volumes") or []),
        {"name": name, "configMap": {"name": name}},
    ]
    for container in pod["spec"]["containers"]:
        mount = {"name": name, "mountPath": _HOSTS}
        container["volumeMounts"] = [*(container.get("volumeMounts") or []), mount]


def _hosts_name(job: Manifest) -> str:
    return f"{job['metadata']['name']}-svc"


def _hosts(job: Manifest) -> Iterator[tuple[str, str]]:
    for task in job["spec"]["tasks"]:
        names = [pod_name(job, task, index) for index in range(task["replicas"])]
        hosts = [f"{name}.{job['metadata']['name']}" for name in names]
        key = task["name"].replace("-", "_")
        yield f"{key}.host", "\n".join(hosts)
        yield f"VC_{key.upper()}_HOSTS", ",".join(hosts)
        yield f"VC_{key.upper()}_NUM", str(len(hosts))


def add_network(store: Store, job: Manifest) -> None:
    """Plugin svc, at the job's start: create the objects that do not exist."""
    plugins = job["spec"].get("plugins") or {}
    if "svc" not in plugins:
        return
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    selector = {_JOB: name, _NAMESPACE: namespace}
    pods = {"matchLabels": selector}
    publish = "--publish-not-ready-addresses" in plugins["svc"]
    service = {"clusterIP": "None", "selector": selector, "publishNotReadyAddresses": publish}
    ingress = [{"from": [{"podSelector": pods}]}]
    policy = {"podSelector": pods, "ingress": ingress, "policyTypes": ["Ingress"]}
    wanted: list[tuple[Resource, str, Manifest]] = [
        (CONFIG_MAPS, _hosts_name(job), {"data": dict(_hosts(job))}),
        (SERVICES, name, {"spec": service}),
        (POLICIES, name, {"spec": policy}),
    ]
    for resource, object_name, body in wanted:
        if store.find(resource, namespace, object_name) is None:
            head = {"name": object_name, "ownerReferences": [owner_ref(job)]}
            store.create(resource, namespace, {"metadata": head, **body})


def remove_network(store: Store, job: Manifest) -> None:
    """Plugin svc, when the job's pods are deleted: delete its objects by name, whoever owns them."""
    if "svc" not in (job["spec"].get("plugins") or {}):
        return
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    for resource, object_name in ((CONFIG_MAPS, _hosts_name(job)), (SERVICES, name), (POLICIES, name)):
        if store.find(resource, namespace, object_name) is not None:
            store.delete(resource, namespace, object_name)
