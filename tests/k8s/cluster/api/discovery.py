"""Discovery endpoints, by kmock: /, /version, /api, /apis and the resources of each group."""

from __future__ import annotations

from collections.abc import Sequence

import kmock

from cluster.api.validation import VERSION
from cluster.objects import Manifest, Resource

_ALL_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_VERSION = {
    "major": "1",
    "minor": VERSION.partition(".")[2],
    "gitVersion": f"v{VERSION}.0",
    "gitCommit": "0" * 40,
    "gitTreeState": "clean",
    "buildDate": "2025-08-27T00:00:00Z",
    "goVersion": "go1.24",
    "compiler": "gc",
    "platform": "linux/amd64",
}


def discovery(resources: Sequence[Resource]) -> kmock.KubernetesScaffold:
    """The kmock application that serves discovery of these resources."""
    app = kmock.KubernetesScaffold()
    app["get /version"] << _VERSION
    # kmock names the core group "/v1", which kubectl does not understand.
    core = [_described(resource) for resource in resources if not resource.group]
    core_list = {"kind": "APIResourceList", "groupVersion": "v1", "resources": core}
    app["get /api/v1"] << core_list
    for resource in resources:
        entry = app.resources[f"{resource.api_version}/{resource.plural}"]
        entry.kind, entry.namespaced, entry.singular = (
            resource.kind,
            resource.namespaced,
            resource.kind.lower(),
        )
        entry.verbs = set(_ALL_VERBS)
    return app


def _described(resource: Resource) -> Manifest:
    kind = {"kind": resource.kind, "singularName": resource.kind.lower(), "namespaced": resource.namespaced}
    return {"name": resource.plural, "verbs": _ALL_VERBS, **kind}
