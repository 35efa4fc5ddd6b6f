"""Start an agent's container of the emulated Kubernetes as a fork of a process that has imported torch."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from warm_commands.command_server import AGENT, THREADS
from warm_commands.forked_command import ForkedCommand, command_server
from warm_commands.warm_launch import COLD

from dist_train.prewarm.early_variables import early_variables

# Without a locale the interpreter chooses the first one too (PEP 538); forks write without a buffer anyway;
# pods cannot write bytecode where the image's modules are.
_NO_MATTER = {
    **dict.fromkeys(("LANG", "LC_CTYPE", "LC_ALL"), "C.UTF-8"),
    **dict.fromkeys(("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"), "1"),
}


def fork_agent(
    program: Path, namespaces: int, spec: Mapping[str, Any], file: Path, out: int, report: int
) -> ForkedCommand | None:
    """Start a container; None where only a new interpreter can be what the spec says.

    Args:
        program: container_init.py.
        namespaces: pid of a process in the pod's.
        file: where the spec is.
        out: descriptor of its output.
        report: descriptor for container_init.py's report.
    """
    if os.environ.get(COLD) == "1" or not may_fork_container(spec):
        return None
    request = {"program": str(program), "namespaces": namespaces, "container": str(file)}
    return command_server().fork(request, out, out, report)


def may_fork_container(spec: Mapping[str, Any]) -> bool:
    """Whether a fork of this process's server is what this spec of container_init.py says."""
    return _is_agent(spec) and early(spec["env"]) == early(os.environ)


def early(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the early variables that make a difference; the server has one thread."""
    found = {"OMP_NUM_THREADS": THREADS, **early_variables(environ)}
    found.pop("TORCHINDUCTOR_CACHE_DIR", None)  # read when something is compiled
    return {name: value for name, value in found.items() if _NO_MATTER.get(name) != value}


def _is_agent(spec: Mapping[str, Any]) -> bool:
    argv: Sequence[str] = spec["argv"]
    threads = argv[argv.index("--threads-per-rank") + 1] if "--threads-per-rank" in argv else ""
    python = shutil.which(argv[0], path=spec["env"]["PATH"])
    # As root an exec would change the capabilities.
    return list(argv[1:4]) == AGENT and threads == THREADS and python == sys.executable and spec["user"] != 0
