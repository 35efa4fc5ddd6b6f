"""Start-up time of the command line: --help, `launch --help` and completion, beside `torchrun --help`.

Wall time of `dist-train --help` against torchrun's, where the aim is a tenth; and the CPU time (user and
system) of each command, where the aim for `launch --help` and for the completion of one of its options is
0.15 s. Asserts nothing.

    python benchmarks/cli_startup.py [--rounds 20] [--record FILE]
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from measurements import Aim, Row, add_arguments, rotated, row, show

_CPU_AIM_S = 0.15
_CPU_AIMED = ("dist-train launch --help", "completion of --no")
_RATIO_AIM = Aim(at_most=0.1)


@dataclass(frozen=True)
class Command:
    """A command line, with the variables that it is given in addition."""

    argv: tuple[str, ...]
    environ: Mapping[str, str]


def commands() -> dict[str, Command]:
    """The commands to time; scripts are those beside this interpreter, else those on PATH."""
    ours = _script("dist-train")
    complete = {"COMP_WORDS": "dist-train launch --no", "COMP_CWORD": "2"}
    return {
        "python -c pass": Command((sys.executable, "-c", "pass"), {}),
        "dist-train --help": Command((ours, "--help"), {}),
        "dist-train launch --help": Command((ours, "launch", "--help"), {}),
        "completion of --no": Command((ours,), {**complete, "_DIST_TRAIN_COMPLETE": "bash_complete"}),
        "torchrun --help": Command((_script("torchrun"), "--help"), {}),
    }


def _script(name: str) -> str:
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise SystemExit(f"{name} is not installed beside {sys.executable}, nor is it on PATH")
    return found


def measure(command: Command) -> tuple[float, float]:
    """Wall time and CPU time of one run, process start included."""
    # As for a user: without bytecode each run would compile dist_train again.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        command.argv,
        env={**environ, **command.environ},
        stdout=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        check=True,
    )
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, used


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    options = parser.parse_args()
    timed = commands()
    for command in timed.values():
        measure(command)  # page cache and bytecode
    walls: dict[str, list[float | None]] = {name: [] for name in timed}
    used: dict[str, list[float | None]] = {name: [] for name in timed}
    for number in range(options.rounds):
        for name in rotated(list(timed), number):
            wall, cpu = measure(timed[name])
            walls[name].append(wall)
            used[name].append(cpu)
    show([*_wall_rows(walls), *_cpu_rows(used)], options.record)


def _wall_rows(walls: Mapping[str, list[float | None]]) -> list[Row]:
    base = ("torchrun --help", walls["torchrun --help"])
    return [
        row(
            "cli_startup",
            "wall time",
            name,
            values,
            "s",
            base=None if name == base[0] else base,
            aim=_RATIO_AIM if name == "dist-train --help" else None,
        )
        for name, values in walls.items()
    ]


def _cpu_rows(used: Mapping[str, list[float | None]]) -> list[Row]:
    rows = [row("cli_startup", "CPU time", name, values, "s") for name, values in used.items()]
    return [_with_aim(each) if each.case in _CPU_AIMED else each for each in rows]


def _with_aim(each: Row) -> Row:
    return replace(each, aim=f"<= {_CPU_AIM_S:g} s", met=each.median <= _CPU_AIM_S)


if __name__ == "__main__":
    main()
