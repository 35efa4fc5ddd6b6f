"""Rendering for the tests: every manifest is checked by `check`."""

from __future__ import annotations

from kubernetes_schemas import Manifest, check, pod_templates

from dist_train.jobs import JobSpec
from launchers._kubernetes.manifest.app import app_of
from launchers._kubernetes.manifest.kubernetes_options import Options
from launchers._kubernetes.manifest.render import manifests

KINDS = ("job", "jobset", "volcano", "trainjob")
IMAGE = "registry.example/me/dist-train:1"


def options_with(**given: object) -> Options:
    """Options with an image, a run volume, and the folder of conftest's `job`."""
    known: dict[str, object] = {"image": IMAGE, "run_volume": "pvc/runs", "source": "/home/me"}
    return Options(**{**known, **given})  # type: ignore[arg-type]


def rendered(spec: JobSpec, **given: object) -> list[Manifest]:
    """The manifests of a plan; raises where an API server would refuse one."""
    options = options_with(**given)
    found = manifests(app_of(spec, options), spec, options)
    for manifest in found:
        check(manifest)
    return found


def template(spec: JobSpec, **given: object) -> Manifest:
    """The pod template (of node 0)."""
    return next(found for manifest in rendered(spec, **given) for found in pod_templates(manifest))


def pod(spec: JobSpec, **given: object) -> Manifest:
    """The pod's spec."""
    found: Manifest = template(spec, **given)["spec"]
    return found


def container(spec: JobSpec, **given: object) -> Manifest:
    """The agent's container."""
    [found] = pod(spec, **given)["containers"]
    assert isinstance(found, dict)
    return found


def environ(spec: JobSpec, **given: object) -> dict[str, str]:
    """Its variables that have a value."""
    return {item["name"]: item["value"] for item in container(spec, **given)["env"] if "value" in item}


def of_kind(found: list[Manifest], kind: str) -> list[Manifest]:
    """Those manifests that are of one kind."""
    return [manifest for manifest in found if manifest["kind"] == kind]
