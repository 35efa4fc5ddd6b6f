"""Install what the benchmarks compare with into a folder of its own, which is last on the search path.

The product's own environment stays as it is: packages that both have are the product's.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_REQUIREMENTS = ROOT / "benchmarks" / "requirements.txt"
_FOLDER = ROOT / "build" / "benchmark-peers"


def installed() -> Path:
    """The folder of the peers; they are installed first if their requirements have changed."""
    _FOLDER.parent.mkdir(exist_ok=True)
    stamp = _FOLDER / ".requirements"
    wanted = f"{sys.version}\n{_REQUIREMENTS.read_text(encoding='utf-8')}"
    with (_FOLDER.parent / "benchmark-peers.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
            where = [
                "--no-deps",
                "--upgrade",
                "--quiet",
                "--quiet",
                "--target",
                str(_FOLDER),
                "-r",
                str(_REQUIREMENTS),
            ]
            print(f"[bench] installing the peers into {_FOLDER}", file=sys.stderr, flush=True)
            subprocess.run([*pip, *where], check=True)
            stamp.write_text(wanted, encoding="utf-8")
    return _FOLDER


def importable() -> None:
    """Let this process import the peers."""
    folder = str(installed())
    if folder not in sys.path:
        sys.path.append(folder)


def environ(base: Mapping[str, str]) -> dict[str, str]:
    """Variables with which a command imports the peers; only for the peers' own commands."""
    return {
        **base,
        "PYTHONPATH": os.pathsep.join(filter(None, [base.get("PYTHONPATH", ""), str(installed())])),
    }


def versions() -> dict[str, str]:
    """The releases of the peers that are installed."""
    found = metadata.distributions(path=[str(installed())])
    return dict(sorted((each.name, each.version) for each in found))
