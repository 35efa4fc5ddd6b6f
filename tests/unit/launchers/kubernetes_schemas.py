"""`check(manifest)`: validate a manifest as an API server would.

Built-in kinds: the published schemas of three versions, strictly, and the official client's models. Kinds
of others: their own published schemas, where `../shared/crds` is there, else small ones of the documented
fields; their pod templates and Jobs always by the built-in schemas. And the rules that no schema holds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import referencing
import yaml
from kubernetes_crd_schemas import SMALL
from kubernetes_validate import utils

VERSIONS = ("1.32", "1.34", "1.37")
CRDS = Path(__file__).resolve().parents[4] / "shared" / "crds"
_POD_TEMPLATE = "io.k8s.api.core.v1.PodTemplateSpec"
_JOB_SPEC = "io.k8s.api.batch.v1.JobSpec"
_DNS = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")

Manifest = dict[str, Any]


_accepted: set[str] = set()


class Refused(AssertionError):
    """A manifest that no API server accepts."""


def check(manifest: Manifest) -> None:
    """Raise Refused with the field and the reason."""
    text = json.dumps(manifest)
    if text in _accepted:  # many tests render the same
        return
    group = manifest["apiVersion"].rpartition("/")[0]
    built_in = "." not in group or (group.endswith("k8s.io") and group != "jobset.x-k8s.io")
    if built_in:
        for version in VERSIONS:
            _ask(_built_in(version, manifest["apiVersion"], manifest["kind"]), manifest, version)
        _check_by_client(manifest)
    else:
        _ask(custom(manifest["apiVersion"], manifest["kind"]), manifest, group)
        for job_spec in job_specs(manifest):
            _ask_all_versions(_JOB_SPEC, job_spec)
    for template in pod_templates(manifest):
        if not built_in:  # else its kind's schema has asked for the template's too
            _ask_all_versions(_POD_TEMPLATE, template)
        _check_pod(template)
    _check_metadata(manifest)
    _accepted.add(text)


def pod_templates(manifest: Manifest) -> list[Manifest]:
    """Every pod template in a manifest."""
    return [
        found
        for found in _below(manifest)
        if isinstance(found, dict) and "containers" in found.get("spec", {})
    ]


def job_specs(manifest: Manifest) -> list[Manifest]:
    """Every spec of a batch/v1 Job in a manifest of another kind."""
    return [found for found in _below(manifest) if isinstance(found, dict) and "completionMode" in found]


def containers(manifest: Manifest) -> list[Manifest]:
    """Every container of every pod template."""
    return [
        container
        for template in pod_templates(manifest)
        for group in ("initContainers", "containers")
        for container in template["spec"].get(group, [])
    ]


def _below(value: object) -> Iterator[Any]:
    yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in inner:
        yield from _below(item)


def _ask(validator: Any, value: object, by: str) -> None:
    errors = sorted(validator.iter_errors(value), key=lambda error: list(map(str, error.absolute_path)))
    if errors:
        where = ".".join(map(str, errors[0].absolute_path))
        raise Refused(f"{by}: {where}: {errors[0].message[:400]}")


def _ask_all_versions(definition: str, value: object) -> None:
    for version in VERSIONS:
        _ask(_definition(version, definition), value, f"{version} {definition}")


@cache
def _folder(version: str) -> str:
    full = next(known for known in utils.all_versions() if utils.major_minor(known) == version)
    return f"kubernetes-json-schema/v{full}-local-strict"


@cache
def _registry(version: str) -> Any:
    definitions = utils.schema_contents(f"{_folder(version)}/_definitions.json", version)
    return referencing.Resource.from_contents(definitions) @ referencing.Registry()


@cache
def _built_in(version: str, api_version: str, kind: str) -> Any:
    """As `kubernetes_validate.validate(…, strict=True)`, which reads 2 MB for each call."""
    short = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    schema = utils.schema_contents(f"{_folder(version)}/{kind.lower()}-{short}.json", version)
    return jsonschema.Draft202012Validator(schema, registry=_registry(version))


@cache
def _definition(version: str, name: str) -> Any:
    schema = {"$ref": f"https://kubernetes.io/api/_definitions.json#/$defs/{name}"}
    return jsonschema.Draft202012Validator(schema, registry=_registry(version))


@cache
def custom(api_version: str, kind: str) -> Any:
    """The validator of a kind that is not built in; an unknown field is an error."""
    schema = _published(api_version, kind) if CRDS.is_dir() else SMALL[api_version, kind]
    return jsonschema.Draft202012Validator(schema)


@cache
def _definitions() -> tuple[Manifest, ...]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found = (yaml.load(path.read_bytes(), loader) for path in sorted(CRDS.glob("*.yaml")))
    return tuple(found)


def _published(api_version: str, kind: str) -> Manifest:
    group, _, version = api_version.partition("/")
    for definition in _definitions():
        spec = definition["spec"]
        if (spec["group"], spec["names"]["kind"]) == (group, kind):
            [schema] = [entry["schema"] for entry in spec["versions"] if entry["name"] == version]
            closed: Manifest = _closed(schema["openAPIV3Schema"])
            return closed
    raise Refused(f"{CRDS} has no {kind} of {api_version}")


def _closed(schema: Any) -> Any:
    """A structural schema as JSON Schema: what the API server would prune is refused."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _closed(value) for key, value in schema.items() if key not in ("description", "format")}
    if schema.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    open_ended = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict) and not open_ended:
        made["additionalProperties"] = False
    return made


def _check_by_client(manifest: Manifest) -> None:
    """The client's models refuse a required field that is missing, and drop what they do not know."""
    from kubernetes import client

    _, _, version = manifest["apiVersion"].rpartition("/")
    model = f"{version.capitalize()}{manifest['kind']}"
    api = client.ApiClient()
    text = SimpleNamespace(data=json.dumps(manifest))
    try:
        again = api.sanitize_for_serialization(api.deserialize(text, model))
    except ValueError as error:
        raise Refused(f"{model} of the client: {error}") from None
    if again != manifest:
        raise Refused(f"{model} of the client makes of it {again}")


def _check_metadata(manifest: Manifest) -> None:
    form = _DNS_1035 if manifest["kind"] != "ConfigMap" else _DNS
    if form.fullmatch(manifest["metadata"]["name"]) is None:
        raise Refused(f"metadata.name: {manifest['metadata']['name']!r}")
    for found in _below(manifest):
        if found is None:
            raise Refused("a null")
        if isinstance(found, dict):
            for value in found.get("labels", {}).values():
                if _LABEL_VALUE.fullmatch(value) is None:
                    raise Refused(f"a label's value: {value!r}")
            for value in found.get("annotations", {}).values():
                if not isinstance(value, str):
                    raise Refused(f"an annotation's value: {value!r}")


def _check_pod(template: Manifest) -> None:
    """References and uniqueness, which an API server checks and a schema cannot."""
    spec = template["spec"]
    volumes = _unique("volume", [volume["name"] for volume in spec.get("volumes", [])])
    for volume in spec.get("volumes", []):
        if len(volume) != 2:
            raise Refused(f"volume {volume['name']} has not one source: {sorted(volume)}")
    _unique("container", [container["name"] for container in spec["containers"]])
    for container in spec["containers"]:
        _unique("variable", [variable["name"] for variable in container.get("env", [])])
        _unique("mount path", [mount["mountPath"] for mount in container.get("volumeMounts", [])])
        for mount in container.get("volumeMounts", []):
            if mount["name"] not in volumes:
                raise Refused(f"the mounted volume {mount['name']} is not there")


def _unique(what: str, names: list[str]) -> set[str]:
    if len(set(names)) != len(names):
        raise Refused(f"a {what} stands there twice: {names}")
    return set(names)
