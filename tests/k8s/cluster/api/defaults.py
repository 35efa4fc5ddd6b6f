"""Default values that the API server sets on create.

https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1/
https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/
"""

from __future__ import annotations

from cluster.objects import CLAIMS, JOBS, NAMESPACES, PODS, SERVICES, Manifest, Resource

PREFIX = "batch.kubernetes.io/"
INDEX = f"{PREFIX}job-completion-index"
TRACKING = f"{PREFIX}job-tracking"


def set_defaults(resource: Resource, obj: Manifest) -> None:
    """Set the defaults of a new object that has its metadata.uid."""
    spec = obj.setdefault("spec", {}) if resource in (JOBS, PODS, SERVICES, CLAIMS) else {}
    if resource == JOBS:
        _set_job_defaults(obj, spec)
        _set_pod_defaults(spec["template"].setdefault("spec", {}))
        obj["status"] = {}
    elif resource == PODS:
        _set_pod_defaults(spec)
        obj["status"] = {"phase": "Pending", "qosClass": "Burstable"}
    elif resource == SERVICES:
        spec.setdefault("type", "ClusterIP")
        spec.setdefault("clusterIP", f"10.96.0.{10 + sum(obj['metadata']['uid'].encode()) % 240}")
        for port in spec.get("ports") or []:
            port.setdefault("protocol", "TCP")
            port.setdefault("targetPort", port["port"])
    elif resource == CLAIMS:
        obj["status"] = {"phase": "Bound", "accessModes": spec.get("accessModes", [])}
    elif resource == NAMESPACES:
        obj["status"] = {"phase": "Active"}


def _set_job_defaults(obj: Manifest, spec: Manifest) -> None:
    name, uid = obj["metadata"]["name"], obj["metadata"]["uid"]
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    # Failed is the only policy that is allowed with a pod failure policy.
    policy = "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed"
    spec.setdefault("podReplacementPolicy", policy)
    # A condition may omit its status.
    for rule in spec.get("podFailurePolicy", {}).get("rules") or []:
        for pattern in rule.get("onPodConditions") or []:
            pattern.setdefault("status", "True")
    spec.setdefault("selector", {"matchLabels": {f"{PREFIX}controller-uid": uid}})
    labels = spec.setdefault("template", {}).setdefault("metadata", {}).setdefault("labels", {})
    labels |= {f"{PREFIX}job-name": name, "job-name": name, "controller-uid": uid}
    labels[f"{PREFIX}controller-uid"] = uid


def _set_pod_defaults(spec: Manifest) -> None:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("securityContext", {})
    for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        container.setdefault("imagePullPolicy", "IfNotPresent")
        resources = container.setdefault("resources", {})
        # A limit without a request is also the request.
        if limits := resources.get("limits"):
            resources["requests"] = {**limits, **(resources.get("requests") or {})}
        for variable in container.get("env") or []:
            field = variable.get("valueFrom", {}).get("fieldRef")
            if field:
                field.setdefault("apiVersion", "v1")
