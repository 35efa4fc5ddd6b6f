"""Validate objects of built-in kinds: unknown fields and wrong types (400), bad values (422).

The schema is checked by kubernetes-validate, strictly: a real server only warns of an unknown field unless
the request has fieldValidation=Strict. Only those values are checked that a launcher can get wrong.
Objects of custom kinds are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cluster.api.errors import bad_request, invalid
from cluster.api.quantities import quantity
from cluster.objects import CONFIG_MAPS, JOBS, PODS, SERVICES, Manifest, Resource

VERSION = "1.34"
_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_SERVICE = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
_SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_VALUE = re.compile(r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")
_IMMUTABLE = ("completions", "selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex")


def check_schema(resource: Resource, body: Manifest) -> None:
    """Raise 400 for unknown fields and wrong types."""
    import kubernetes_validate

    if resource.custom or (body.get("apiVersion"), body.get("kind")) != (resource.api_version, resource.kind):
        return  # of another version or kind: the store refuses it
    try:
        kubernetes_validate.validate(body, VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        where = ".".join(map(str, error.path))
        raise bad_request(
            f"{resource.kind} in version {resource.version!r} cannot be handled as a {resource.kind}: "
            f"strict decoding error: {where}: {error.message}"
        ) from None


def check_values(resource: Resource, obj: Manifest) -> None:
    """Raise 422 for the first invalid value of a new object."""
    kind, name = _title(resource), obj["metadata"]["name"]
    for field, why in _violations(resource, obj):
        raise invalid(kind, name, field, why)


def check_change(resource: Resource, old: Manifest, new: Manifest) -> None:
    """Raise 422 when an immutable field changes."""
    immutable = "field is immutable"
    if resource == JOBS:
        fields = [*_IMMUTABLE, *([] if old["spec"].get("suspend") else ["template"])]
        for field in fields:
            if old["spec"].get(field) != new["spec"].get(field):
                raise invalid(_title(resource), new["metadata"]["name"], f"spec.{field}", immutable)
    if resource == CONFIG_MAPS and old.get("immutable"):
        for field in ("data", "binaryData", "immutable"):
            if old.get(field) != new.get(field):
                why = f"{immutable} when `immutable` is set"
                raise invalid(_title(resource), new["metadata"]["name"], field, why)


def _title(resource: Resource) -> str:
    return f"{resource.kind}.{resource.group}" if resource.group else resource.kind


def _violations(resource: Resource, obj: Manifest) -> Iterator[tuple[str, str]]:
    name = obj["metadata"]["name"]
    form = _SERVICE if resource == SERVICES else _SUBDOMAIN
    if not form.match(name) or len(name) > (63 if resource == SERVICES else 253):
        yield (
            "metadata.name",
            f'Invalid value: "{name}": not a DNS name: lower case letters, digits, -',
        )
    yield from _label_violations("metadata", obj["metadata"])
    if resource == JOBS:
        yield from _job_violations(name, obj["spec"])
        yield from _label_violations("spec.template", obj["spec"]["template"].get("metadata") or {})
        yield from _pod_violations("spec.template.spec", obj["spec"]["template"]["spec"])
    if resource == PODS:
        yield from _pod_violations("spec", obj["spec"])


def _label_violations(where: str, metadata: Manifest) -> Iterator[tuple[str, str]]:
    for value in (metadata.get("labels") or {}).values():
        if len(value) > 63 or not _VALUE.match(value):
            yield f"{where}.labels", f'Invalid value: "{value}": a valid label is at most 63 of A-Za-z0-9_.-'


def _job_violations(name: str, spec: Manifest) -> Iterator[tuple[str, str]]:
    restart = spec["template"]["spec"]["restartPolicy"]
    if restart not in ("OnFailure", "Never"):
        yield "spec.template.spec.restartPolicy", f'Unsupported value: "{restart}": "OnFailure", "Never"'
    if spec["completionMode"] == "Indexed":
        if spec.get("completions") is None:
            yield "spec.completions", "Required value: when completion mode is Indexed"
        elif len(last := f"{name}-{spec['completions'] - 1}") > 63 or not _LABEL.match(last):
            yield "metadata.name", f'Invalid value: "{last}": will not be a valid host name of its pods'
    if "podFailurePolicy" in spec:
        if restart != "Never":
            yield "spec.podFailurePolicy", 'Invalid value: only supported with restartPolicy "Never"'
        if spec["podReplacementPolicy"] != "Failed":
            yield "spec.podReplacementPolicy", 'Unsupported value: only "Failed" with a podFailurePolicy'
        yield from _rule_violations(spec)


def _rule_violations(spec: Manifest) -> Iterator[tuple[str, str]]:
    pod = spec["template"]["spec"]
    names = {c["name"] for c in [*pod.get("containers", []), *(pod.get("initContainers") or [])]}
    for index, rule in enumerate(spec["podFailurePolicy"]["rules"]):
        where = f"spec.podFailurePolicy.rules[{index}]"
        if ("onExitCodes" in rule) == ("onPodConditions" in rule):
            yield where, "Invalid value: specifying one of OnExitCodes and OnPodConditions is required"
        codes = rule.get("onExitCodes", {})
        values = codes.get("values", [1])
        if codes.get("containerName", next(iter(names))) not in names:
            yield f"{where}.onExitCodes.containerName", "Invalid value: must be one of the containers"
        if values != sorted(set(values)):
            yield (
                f"{where}.onExitCodes.values",
                f"Invalid value: {values}: must be ordered and unique",
            )
        if codes.get("operator") == "In" and 0 in values:
            yield f"{where}.onExitCodes.values", "Invalid value: 0: must not be 0 for the In operator"


def _pod_violations(where: str, spec: Manifest) -> Iterator[tuple[str, str]]:
    volumes = {volume["name"] for volume in spec.get("volumes") or []}
    for group in ("initContainers", "containers"):
        for number, container in enumerate(spec.get(group) or []):
            at = f"{where}.{group}[{number}]"
            for index, mount in enumerate(container.get("volumeMounts") or []):
                if mount["name"] not in volumes:
                    yield f"{at}.volumeMounts[{index}].name", f'Not found: "{mount["name"]}"'
            yield from _resource_violations(at, container["resources"])
    if not spec.get("containers"):
        yield f"{where}.containers", "Required value"
    for field in ("hostname", "subdomain"):
        if field in spec and (len(spec[field]) > 63 or not _LABEL.match(spec[field])):
            yield f"{where}.{field}", f'Invalid value: "{spec[field]}": must be a DNS label of at most 63'


def _resource_violations(where: str, resources: Manifest) -> Iterator[tuple[str, str]]:
    limits = resources.get("limits") or {}
    for name, request in (resources.get("requests") or {}).items():
        at = f"{where}.resources.requests"
        try:
            too_much = name in limits and quantity(request) > quantity(limits[name])
        except ValueError as error:
            yield f"{at}[{name}]", f'Invalid value: "{request}": {error}'
            continue
        if too_much:
            yield (
                at,
                f'Invalid value: "{request}": must be at most the {name} limit, {limits[name]}',
            )
