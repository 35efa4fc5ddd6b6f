"""The file of `--pod-patch`: read once, when the options are, so that a resume needs it no more."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dist_train.config import is_secret_name
from launchers._kubernetes.manifest.patch import DIRECTIVE, MERGE_KEYS


def read(path: str) -> object:
    """The patch; raises ValueError for a file that is not there or is no YAML."""
    import yaml

    try:
        found: object = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no YAML: {error}") from None
    return found


def check(patch: object) -> None:
    """Raises ValueError for what cannot be merged, or must not be written down.

    What Kubernetes itself refuses is left to it.
    """
    if not isinstance(patch, Mapping):
        raise ValueError("the pod patch is not a mapping with metadata: and spec:")
    strange = sorted(str(key) for key in patch if key not in ("metadata", "spec"))
    if strange:
        raise ValueError(
            f"{strange[0]!r} stands at the top of the pod patch: a pod template has metadata: and spec: alone"
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
            f"hand it over with --secret-ref {name}=SECRET/KEY"
        )
