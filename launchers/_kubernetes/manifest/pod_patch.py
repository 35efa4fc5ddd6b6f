"""`--pod-patch`: Kubernetes' strategic merge patch, applied to the pod template last.

Mappings merge, and null removes a key. Lists of named items (containers, env, volumes, …) merge by their
key, one item at a time; `$patch: delete` removes an item, `$patch: replace` replaces it as a whole. Every
other list (command, tolerations, capabilities, …) is replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# `patchMergeKey` of the API's types.
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
    """Return `base` with the patch applied; neither is changed."""
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
        indices = [at for at, old in enumerate(merged) if old.get(key) == item.get(key)]
        if item.get(DIRECTIVE) == "delete":
            merged = [old for at, old in enumerate(merged) if at not in indices]
        elif indices:
            merged[indices[0]] = merge(merged[indices[0]], item)
        else:
            merged.append(merge({}, item))
    return merged
