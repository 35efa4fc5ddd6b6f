"""Values of options with a form of their own: --run-volume, --resource, --secret-ref, --ttl.

Each function raises ValueError, whose text pydantic shows with the option's name.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from launchers._kubernetes.manifest import validators
from launchers._kubernetes.manifest.quantities import is_quantity

EMPTY_DIR = "emptydir"
NEVER = "never"
# The one resource of every pod that can be left out, and the word for it.
DISK, NONE = "ephemeral-storage", "none"
GPU = "nvidia.com/gpu"
# Names under which device plugins offer GPUs: of NVIDIA (with MIG profiles, and shared ones), AMD, Intel.
_GPUS = re.compile(r"nvidia\.com/(?:gpu|mig-).*|amd\.com/gpu.*|gpu\.intel\.com/.*")
_VOLUME = re.compile(r"pvc/(?P<name>[^:/]+)(?::(?P<folder>.+))?")
_SECRET_REF = re.compile(r"(?P<secret>[^/]+)/(?P<key>[A-Za-z0-9._-]+)")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TTL = re.compile(r"(\d+)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# Resources that another option sets.
_OTHER_OPTIONS = {
    "cpu": "--cpus-per-gpu",
    "memory": "--mem",
    GPU: "--gpus-per-node (or --device cpu for none)",
}


def volume_claim(text: str) -> tuple[str, str | None] | None:
    """The claim and the folder in it of `pvc/NAME[:FOLDER]`; None for emptydir."""
    if text == EMPTY_DIR:
        return None
    if (found := _VOLUME.fullmatch(text)) is None:
        raise ValueError("expected pvc/NAME, pvc/NAME:FOLDER or emptydir")
    name, folder = validators.dns_name(found["name"]), found["folder"]
    if folder and (folder.startswith("/") or ".." in PurePosixPath(folder).parts):
        raise ValueError(f"the folder {folder!r} must lie in the volume: no leading /, no ..")
    return name, folder


def check_gpu_resource(name: str) -> None:
    """Check the name of an extended resource: of a domain, and not Kubernetes' own."""
    validators.label_key(name)
    if "/" not in name or name.partition("/")[0].endswith("kubernetes.io"):
        raise ValueError(f"{name!r} is no resource of a device plugin: expected DOMAIN/NAME, as amd.com/gpu")


def is_gpu(name: str) -> bool:
    """Whether a resource is a GPU, or a part of one, by its name."""
    return _GPUS.fullmatch(name) is not None


def check_resources(texts: tuple[str, ...]) -> None:
    """Check NAME=N of every resource."""
    for name, amount in validators.pairs(texts).items():
        if name in _OTHER_OPTIONS:
            raise ValueError(f"{name} is set by {_OTHER_OPTIONS[name]}")
        validators.label_key(name)
        if amount == NONE and name == DISK:
            continue
        if amount == NONE:
            raise ValueError(f"{name}={NONE}: only {DISK} can be {NONE}; leave out what is not wanted")
        if not is_quantity(amount):
            raise ValueError(f"{name}={amount}: expected a count or an amount such as 4 or 50Gi")
        if "/" in name and not amount.isdigit():
            raise ValueError(f"{name}={amount}: devices come in whole numbers")


def secret_keys(texts: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Parse NAME=SECRET/KEY: variable -> (Secret, key)."""
    return {name: _secret_key(name, text) for name, text in validators.pairs(texts).items()}


def _secret_key(name: str, text: str) -> tuple[str, str]:
    if _ENV_NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is not the name of an environment variable")
    # The value itself is not quoted: it may be the secret, given by mistake.
    wrong = ValueError(f"{name}=… is not of the form NAME=SECRET/KEY: a Secret's name and a key of it")
    if (found := _SECRET_REF.fullmatch(text)) is None:
        raise wrong
    try:
        return validators.dns_name(found["secret"]), found["key"]
    except ValueError:
        raise wrong from None


def ttl_seconds(text: str) -> int | None:
    """The seconds of 45s, 30m, 12h or 7d; None for never."""
    if text == NEVER:
        return None
    if (found := _TTL.fullmatch(text)) is None:
        raise ValueError("expected 45s, 30m, 12h, 7d or never")
    return int(found[1]) * _SECONDS[found[2]]
