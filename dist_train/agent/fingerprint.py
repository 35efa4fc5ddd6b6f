"""What all nodes, and all attempts of a run, must have in common."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dist_train import __version__
from dist_train.agent.settings import Settings


def fingerprint(told: Settings) -> dict[str, str]:
    """Versions, the config's and the script's bytes, and the thread count, each as short text."""
    return {
        "dist_train": __version__,
        "torch": _version("torch"),
        "python": platform.python_version(),
        "target": f"{told.kind}:{told.value}",
        "config": _hash_of(told.run.config) if told.kind == "config" else "none",
        "script": _hash_of(Path(told.value)) if told.kind == "script" else "none",
        "threads_per_rank": str(told.threads_per_rank),
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
