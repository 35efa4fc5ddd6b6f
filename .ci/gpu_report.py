"""What a GPU run was made on, and one file with all that it has found: environment, tests, loop benchmark.

`.ci/test.py --gpu` prints the environment first, and writes build/gpu-report.json at the end.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

REPORT = Path("build") / "gpu-report.json"
_QUERY = "index,name,uuid,driver_version,memory.total,compute_mode,mig.mode.current"
# Of the loop benchmark: enough for an interval of 95 %.
_ROUNDS = 10


def main() -> int:
    """Print the environment as JSON."""
    print(json.dumps(environment(), indent=2))
    return 0


def environment() -> dict[str, Any]:
    """Versions, devices and driver; what cannot be found is said in its place."""
    import torch
    import torch.distributed as torch_dist

    there = torch.cuda.is_available()
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": len_of_affinity(),
        "torch": torch.__version__,
        "cuda of torch": torch.version.cuda,
        "hip of torch": torch.version.hip,
        "cudnn": torch.backends.cudnn.version() if there else None,
        "nccl": nccl_version() if there and torch_dist.is_nccl_available() else None,
        "commit": output_of(["git", "rev-parse", "HEAD"]),
        "changed files": len(output_of(["git", "status", "--porcelain"]).splitlines()),
        "driver": output_of(["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv"]),
        "links": output_of(["nvidia-smi", "topo", "-m"]),
        "devices": [device_facts(index) for index in range(torch.cuda.device_count())] if there else [],
    }


def len_of_affinity() -> int:
    """Cores that this process may use."""
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def nccl_version() -> str:
    """As torch was built with, or has loaded."""
    import torch

    return ".".join(map(str, torch.cuda.nccl.version()))


def device_facts(index: int) -> dict[str, Any]:
    """One GPU as torch sees it."""
    import torch

    found = torch.cuda.get_device_properties(index)
    return {
        "name": found.name,
        "bytes": found.total_memory,
        "capability": f"{found.major}.{found.minor}",
        "processors": found.multi_processor_count,
        "uuid": str(getattr(found, "uuid", "")),
    }


def output_of(command: Sequence[str]) -> str:
    """What a command says, or why it says nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    return (done.stdout if done.returncode == 0 else f"{command[0]}: {done.stderr or done.stdout}").strip()


def tests_of(junit: Path) -> list[dict[str, Any]]:
    """Name, outcome, seconds and reason of each test of a JUnit report; none where there is no report."""
    try:
        cases = list(ElementTree.parse(junit).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return []
    return [_test(case) for case in cases]


def _test(case: ElementTree.Element) -> dict[str, Any]:
    found = {"name": f"{case.get('classname')}::{case.get('name')}", "seconds": float(case.get("time", "0"))}
    for outcome in ("failure", "error", "skipped"):
        child = case.find(outcome)
        if child is not None:
            text = child.text or ""
            return {**found, "outcome": outcome, "reason": child.get("message") or "", "text": text[-8000:]}
    return {**found, "outcome": "passed"}


def benchmark_command(ranks: int, record: Path) -> list[str]:
    """The loop benchmark on as many GPUs."""
    words = [sys.executable, "benchmarks/loop_overhead.py", "--device", "cuda", "--ranks", str(ranks)]
    return [*words, "--rounds", str(_ROUNDS), "--record", str(record)]


def write_report(
    facts: Mapping[str, Any], tests: Sequence[Mapping[str, Any]], benchmark: Mapping[str, Any]
) -> Path:
    """Write all of it into one file; return where."""
    REPORT.parent.mkdir(exist_ok=True)
    whole = {"environment": facts, "tests": list(tests), "loop benchmark": dict(benchmark)}
    REPORT.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    return REPORT.resolve()


def read_rows(path: Path) -> list[Any]:
    """What a benchmark has recorded, as JSON lines; nothing where it has not."""
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        return []


if __name__ == "__main__":
    sys.exit(main())
