"""Webhook of JobSets: sets defaults and validates (422).

https://github.com/kubernetes-sigs/jobset/blob/main/pkg/webhooks/jobset_webhook.go
Validated: the names derived from the JobSet's, the rules of the failure policy. The schema is not: see the
published ones in tests/unit/launchers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from cluster.api.errors import invalid
from cluster.objects import Manifest, Resource
from cluster.operators.jobset_children import JOB_SETS, child_name

_LABEL = re.compile(r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")
_RULE = re.compile(r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
_REASONS = (
    "BackoffLimitExceeded",
    "DeadlineExceeded",
    "FailedIndexes",
    "MaxFailedIndexesExceeded",
    "PodFailurePolicy",
)


def admit_job_set(resource: Resource, obj: Manifest, warn: Callable[[str], None]) -> None:
    """Webhook for Store.admission."""
    if resource != JOB_SETS:
        return
    spec = obj.setdefault("spec", {})
    _set_defaults(spec)
    for field, why in _violations(obj, spec):
        raise invalid("JobSet.jobset.x-k8s.io", obj["metadata"]["name"], field, why)


def _set_defaults(spec: Manifest) -> None:
    spec.setdefault("successPolicy", {"operator": "All"})
    spec.setdefault("startupPolicy", {"startupPolicyOrder": "AnyOrder"})
    network = spec.setdefault("network", {})
    network.setdefault("enableDNSHostnames", True)
    network.setdefault("publishNotReadyAddresses", True)
    for replicated in spec.get("replicatedJobs") or ():
        replicated.setdefault("replicas", 1)
        replicated.setdefault("groupName", "default")
        job = replicated["template"]["spec"]
        job.setdefault("completionMode", "Indexed")
        job["template"]["spec"].setdefault("restartPolicy", "OnFailure")
    for number, rule in enumerate((spec.get("failurePolicy") or {}).get("rules") or ()):
        rule.setdefault("name", f"failurePolicyRule{number}")


def _violations(obj: Manifest, spec: Manifest) -> Iterator[tuple[str, str]]:
    subdomain = spec["network"].get("subdomain")
    if subdomain is not None and not _LABEL.match(subdomain):
        yield "spec.network.subdomain", f'Invalid value: "{subdomain}": not a DNS-1035 label'
    for number, replicated in enumerate(spec.get("replicatedJobs") or ()):
        job = child_name(obj, replicated, replicated["replicas"] - 1)
        pod = f"{job}-{replicated['template']['spec'].get('completions', 1) - 1}-abcde"
        for what, name in (("job", job), ("pod", pod)):
            if not _LABEL.match(name):
                why = f'Invalid value: "{job}": {what} names generated for this JobSet are not DNS labels'
                yield f"spec.replicatedJobs[{number}].name", why
    yield from _rule_violations((spec.get("failurePolicy") or {}).get("rules") or ())


def _rule_violations(rules: Sequence[Manifest]) -> Iterator[tuple[str, str]]:
    where = "spec.failurePolicy.rules"
    names = [rule["name"] for rule in rules]
    if len(names) != len(set(names)):
        yield where, "rule names are not unique"
    for rule in rules:
        if not _RULE.match(rule["name"]):
            yield where, f"invalid failure policy rule name '{rule['name']}'"
        for reason in rule.get("onJobFailureReasons") or ():
            if reason not in _REASONS:
                yield where, f"invalid job failure reason '{reason}' in failure policy"
