"""The fingerprint: what all nodes and all attempts of a run must have in common."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dist_train import __version__
from dist_train.agent.settings import Settings


def fingerprint(settings: Settings) -> dict[str, str]:
    """Collect versions, hashes of config and script, and the thread count, each as short text."""
    return {
        "dist_train": __version__,
        "torch": _version("torch"),
        "python": platform.python_version(),
        # Without a common run directory each node has its own copy of the config, at a path of its own.
        "target": f"{settings.kind}:{Path(settings.value).name if settings.run_key else settings.value}",
        "config": _hash_of(settings.run.config) if settings.kind == "config" else "none",
        "script": _hash_of(Path(settings.value)) if settings.kind == "script" else "none",
        "threads_per_rank": str(settings.threads_per_rank),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def _hash_of(path: Path) -> str:
    import xxhash

    try:
        return xxhash.xxh3_128_hexdigest(path.read_bytes())
    except OSError as error:
        return f"unreadable ({error.strerror})"
