"""The file of `--pod-patch`: read with the options and stored with the run, so that resume needs no file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dist_train.config import is_secret_name
from launchers._kubernetes.manifest.pod_patch import DIRECTIVE, MERGE_KEYS


def read(path: str) -> object:
    """Read the patch; raises ValueError for a file that does not exist or is not YAML."""
    import yaml

    try:
        found: object = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no YAML: {error}") from None
    return found


def check(patch: object) -> None:
    """Raise ValueError for what cannot be merged, and for values of secrets.

    Everything else is left to Kubernetes' own validation.
    """
    if not isinstance(patch, Mapping):
        raise ValueError("the pod patch is not a mapping with metadata: and spec:")
    unknown = sorted(str(key) for key in patch if key not in ("metadata", "spec"))
    if unknown:
        raise ValueError(
            f"{unknown[0]!r} is a top-level key of the pod patch: a pod template has only metadata: and spec:"
        )
    _check_below(patch, "")


def _check_below(value: object, where: str) -> None:
    if isinstance(value, Mapping):
        _refuse_secret(value)
        for key, below in value.items():
            _check_key(key, below, where)
            _check_below(below, f"{where}.{key}".lstrip("."))
    elif isinstance(value, list):
        for item in value:
            _check_item(item, where)
            _check_below(item, where)
    elif not isinstance(value, (str, int, float, bool, type(None))):
        raise ValueError(f"{where} of the pod patch is {value!r}, which YAML made of it: quote it")


def _check_key(key: object, value: object, where: str) -> None:
    if not isinstance(key, str):
        raise ValueError(f"the key {key!r} below {where!r} of the pod patch is not text: quote it")
    if key.startswith("$") and (key != DIRECTIVE or value not in ("delete", "replace")):
        raise ValueError(
            f"{key}: {value} in the pod patch: {DIRECTIVE}: delete and {DIRECTIVE}: replace are known"
        )


def _check_item(item: object, where: str) -> None:
    key = MERGE_KEYS.get(where.rpartition(".")[2])
    if key is not None and (not isinstance(item, Mapping) or key not in item):
        raise ValueError(f"an item of {where} in the pod patch has no {key}, by which it would be merged")


def _refuse_secret(item: Mapping[object, object]) -> None:
    name = str(item.get("name", ""))
    if "value" in item and is_secret_name(name):
        raise ValueError(
            f"{name} in the pod patch looks like a secret, and the patch is written into the manifest: "
            f"pass it with --secret-ref {name}=SECRET/KEY"
        )
