"""Apply the patch formats of the API server to plain dictionaries.

JSON patch (RFC 6902: add, replace, remove, test), merge patch (RFC 7386) and strategic merge patch:
https://kubernetes.io/docs/tasks/manage-kubernetes-objects/update-api-object-kubectl-patch/
A strategic merge patch merges the lists of _KEYS and replaces all others, which is the `patchStrategy` of
most. Server-side apply is not emulated.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from cluster.api.errors import bad_request, unsupported_patch
from cluster.objects import Resource

JSON = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

# Lists merged by a key of their items: `patchMergeKey` of the API's types.
_KEYS = {
    "ownerReferences": "uid",
    "conditions": "type",
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "port",
}
# Lists of strings, merged as sets.
_SETS = frozenset({"finalizers"})


def apply_patch(resource: Resource, obj: Any, patch: Any, content_type: str) -> Any:
    """Return the patched object; the arguments are not modified."""
    kind = content_type.partition(";")[0].strip()
    if kind == JSON:
        return _json(copy.deepcopy(obj), patch)
    if kind == MERGE:
        return _merge(obj, patch)
    if kind == STRATEGIC and not resource.custom:
        return _strategic(obj, patch)
    accepted = [JSON, MERGE] if resource.custom else [JSON, MERGE, STRATEGIC]
    raise unsupported_patch(kind, ", ".join(accepted))


def _merge(old: Any, patch: Any) -> Any:
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    new = copy.deepcopy(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = _merge(new.get(key), value)
    return new


def _strategic(old: Any, patch: Any) -> Any:
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    if patch.get("$patch") == "replace":
        return {key: copy.deepcopy(value) for key, value in patch.items() if key != "$patch"}
    new = copy.deepcopy(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            new[name] = [item for item in new.get(name) or [] if item not in value]
        elif key.startswith("$"):
            continue  # $setElementOrder and $retainKeys change the order of lists and unions only
        elif value is None:
            new.pop(key, None)
        elif isinstance(value, list):
            new[key] = _strategic_list(key, new.get(key) or [], value)
        else:
            new[key] = _strategic(new.get(key), value)
    return new


def _strategic_list(name: str, old: list[Any], patch: list[Any]) -> list[Any]:
    if name in _SETS:
        return [*old, *(item for item in patch if item not in old)]
    key = _KEYS.get(name)
    if key is None or not all(isinstance(item, Mapping) for item in patch):
        return copy.deepcopy(patch)
    new = copy.deepcopy(old)
    for item in patch:
        at = next((i for i, other in enumerate(new) if other.get(key) == item.get(key)), None)
        if item.get("$patch") == "delete":
            new = [other for other in new if other.get(key) != item.get(key)]
        elif at is None:
            new.append(copy.deepcopy(dict(item)))
        else:
            new[at] = _strategic(new[at], item)
    return new


def _json(obj: Any, patch: Any) -> Any:
    if not isinstance(patch, list):
        raise bad_request("a JSON patch is a list of operations")
    for step in patch:
        segments = [text.replace("~1", "/").replace("~0", "~") for text in step["path"].split("/")[1:]]
        holder = obj
        try:
            for segment in segments[:-1]:
                holder = holder[int(segment)] if isinstance(holder, list) else holder[segment]
            _json_step(holder, segments[-1], step)
        except (KeyError, IndexError, ValueError, TypeError):
            raise bad_request(
                f"the server rejected our request: cannot {step['op']} {step['path']}"
            ) from None
    return obj


def _json_step(holder: Any, segment: str, step: Mapping[str, Any]) -> None:
    key: Any = segment if isinstance(holder, dict) else (len(holder) if segment == "-" else int(segment))
    match step["op"]:
        case "add" if isinstance(holder, list):
            holder.insert(key, step["value"])
        case "add":
            holder[key] = step["value"]
        case "replace":
            holder[key]
            holder[key] = step["value"]
        case "remove":
            del holder[key]
        case "test" if holder[key] == step["value"]:
            pass
        case _:
            raise ValueError(step["op"])
