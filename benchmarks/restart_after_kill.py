"""From the kill -9 of a rank to the next attempt's first step, beside torchrun --max-restarts.

Wall seconds from the kill, in the second step, to the end of the last rank's first step in the next attempt;
and how many of the kills were recovered from. c10d: two agents of torchrun and two nodes of ours, two ranks
each. Then twenty kills in a row in each of some runs of ours.

    python benchmarks/restart_after_kill.py [--rounds 20] [--full] [--kills 20]

One node takes all rounds, two nodes a quarter of them, as do the runs of many kills, unless --full is given.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from launch_to_first_step import SCRIPT, Commands, Launch, dist_train, torchrun, torchrun_c10d
from measurements import Aim, Row, add_arguments, interleaved, row, show

_NAME = "restart_after_kill"
_AIM = Aim(at_most=0.06)
_SHARE = 0.25


def seconds_of(launch: Launch, kill: int) -> float | None:
    """From a kill to the next attempt's first step; None where there was none."""
    again = launch.step_at(kill + 1)
    try:
        killed = float((launch.folder / f"killed-{kill}").read_text())
    except (OSError, ValueError):
        return None
    return None if again is None else again - killed


def recovered(title: str, case: str, found: Sequence[float | None]) -> Row:
    """How many kills were recovered from, as a row."""
    count = sum(value is not None for value in found)
    measured = f"{title}: kills recovered from, of {len(found)}"
    return Row(_NAME, measured, case, f"of {len(found)}", len(found), count, count, count)


def measure(
    title: str, ranks: int, cases: dict[str, Callable[[Launch], Commands]], rounds: int, root: Path
) -> list[Row]:
    """Interleave the launchers, one kill in each launch; the last case is the base."""

    def once(name: str) -> float | None:
        launch = Launch(root, ranks, kills=1)
        good = launch.ends_well(cases[name](launch))
        return seconds_of(launch, 0) if good else None

    found = interleaved({name: lambda name=name: once(name) for name in cases}, rounds)  # type: ignore[misc]
    base = list(cases)[-1]
    rows = []
    for name, values in found.items():
        against, aim = (None, None) if name == base else ((base, found[base]), _AIM)
        measured = f"{title}: kill -9 to the next attempt's first step"
        rows.append(row(_NAME, measured, name, values, "s", against, aim))
    return rows + [recovered(title, name, values) for name, values in found.items()]


def many_kills(launches: int, kills: int, root: Path) -> list[Row]:
    """Runs of ours in which each of many attempts in a row loses a rank."""
    values: list[float | None] = []
    for _ in range(launches):
        launch = Launch(root, 2, kills)
        good = launch.ends_well(dist_train(launch, 2, "--max-restarts", str(kills)))
        found = [seconds_of(launch, kill) for kill in range(kills)]
        values += found if good else [*found[:-1], None]
    title = f"2 ranks, {kills} kills in each run"
    measured = f"{title}: kill -9 to the next attempt's first step"
    return [row(_NAME, measured, "dist-train", values, "s"), recovered(title, "dist-train", values)]


def main() -> None:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(
        description="from a kill to the next attempt's first step, beside torchrun"
    )
    add_arguments(parser)
    parser.add_argument("--full", action="store_true", help="all rounds for everything")
    parser.add_argument("--kills", type=int, default=20, help="in each of the runs of many, default 20")
    options = parser.parse_args()
    some = options.rounds if options.full else max(1, round(options.rounds * _SHARE))
    print(f"one node: {options.rounds} rounds; two nodes, and runs of many kills: {some}", flush=True)
    once = ("--max-restarts", "1")
    with tempfile.TemporaryDirectory(prefix="dist-train-bench-") as folder:
        root = Path(folder)
        (root / "train.py").write_text(SCRIPT)
        one_node = {
            "dist-train": lambda launch: dist_train(launch, 2, *once),
            "torchrun": lambda launch: torchrun(launch, 2, *once),
        }
        two_nodes = {
            "dist-train": lambda launch: dist_train(launch, 2, "--nodes", "2", *once),
            "torchrun c10d": lambda launch: torchrun_c10d(launch, 2, *once),
        }
        show(measure("2 ranks", 2, one_node, options.rounds, root), options.record)
        show(measure("2 nodes x 2 ranks", 4, two_nodes, some, root), options.record)
        show(many_kills(some, options.kills, root), options.record)


if __name__ == "__main__":
    main()
