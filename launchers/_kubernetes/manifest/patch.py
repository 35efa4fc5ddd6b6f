"""`--pod-patch`: Kubernetes' strategic merge, applied to the pod template last.

Dicts merge, and null removes a key. Lists of named things (containers, env, volumes, …) merge by their
key, an item at a time; `$patch: delete` in an item removes it, `$patch: replace` takes it whole. Every
other list (command, tolerations, capabilities, …) replaces the one that was there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# As `patchMergeKey` of the API's types has it.
MERGE_KEYS = {
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ports": "containerPort",
    "resourceClaims": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
DIRECTIVE = "$patch"


def merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the patch applied; neither is changed."""
    if patch.get(DIRECTIVE) == "replace":
        return {key: value for key, value in patch.items() if key != DIRECTIVE}
    merged = dict(base)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            before = merged.get(key)
            merged[key] = merge(before if isinstance(before, Mapping) else {}, value)
        elif isinstance(value, list) and key in MERGE_KEYS:
            merged[key] = _merge_items(merged.get(key, []), value, MERGE_KEYS[key])
        else:
            merged[key] = value
    return merged


def _merge_items(base: list[dict[str, Any]], patch: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    merged = list(base)
    for item in patch:
        places = [at for at, old in enumerate(merged) if old.get(key) == item.get(key)]
        if item.get(DIRECTIVE) == "delete":
            merged = [old for at, old in enumerate(merged) if at not in places]
        elif places:
            merged[places[0]] = merge(merged[places[0]], item)
        else:
            merged.append(merge({}, item))
    return merged
