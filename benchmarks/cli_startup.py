"""Start-up time of the command line: `dist-train --help` beside `torchrun --help`.

Rounds are interleaved and begin each time with another command, so that a slow minute of the machine
affects all of them. Prints medians with their 95 % intervals (by order statistics, no distribution
assumed) and the ratio; asserts nothing. The aim: at most a tenth of torchrun's time.

    python benchmarks/cli_startup.py [--rounds 20]
"""

from __future__ import annotations

import argparse
import math
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

_CONFIDENCE = 0.95
_MINIMUM = 20


def commands() -> dict[str, list[str]]:
    """The commands to time; scripts are those beside this interpreter, else those on PATH."""
    return {
        "python -c pass": [sys.executable, "-c", "pass"],
        "dist-train --help": [_script("dist-train"), "--help"],
        "torchrun --help": [_script("torchrun"), "--help"],
    }


def _script(name: str) -> str:
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise SystemExit(f"{name} is not installed beside {sys.executable}, nor is it on PATH")
    return found


def seconds(command: list[str]) -> float:
    """Wall time of one run, process start included."""
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def interval(values: list[float]) -> tuple[float, float]:
    """The narrowest pair of order statistics that covers the median with at least 95 %."""
    ordered, n = sorted(values), len(values)
    tail, skipped = 0.5**n, 0
    while 2 * (tail + math.comb(n, skipped + 1) * 0.5**n) <= 1 - _CONFIDENCE:
        skipped += 1
        tail += math.comb(n, skipped) * 0.5**n
    return ordered[skipped], ordered[n - 1 - skipped]


def _line(name: str, values: list[float], scale: float, unit: str) -> str:
    low, high = interval(values)
    median = statistics.median(values)
    return f"{name:<22} {median * scale:9.3f}{unit}  [{low * scale:.3f} .. {high * scale:.3f}]"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="start-up time of the command line, beside torchrun's")
    parser.add_argument("--rounds", type=int, default=_MINIMUM, help=f"at least {_MINIMUM}")
    rounds = max(_MINIMUM, parser.parse_args().rounds)
    timed = commands()
    names = list(timed)
    for command in timed.values():
        seconds(command)  # page cache and bytecode
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            found[name].append(seconds(timed[name]))
    print(f"{rounds} interleaved rounds, median [95 % interval of the median]")
    for name in names:
        print(_line(name, found[name], 1000, " ms"))
    ours, theirs = found["dist-train --help"], found["torchrun --help"]
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    print(_line("dist-train / torchrun", ratios, 1, "   ") + "   aim: at most 0.1")


if __name__ == "__main__":
    main()
