"""`python -m dist_train.rundir.requests.stacks_command`: ask where the run directory is seen.

For launchers whose run directory the user's machine does not see: they run this beside the job. Its words are
RUN_DIR NODES RANKS; the last two are numbers with commas, no rank means all. It prints one line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from dist_train.rundir.directory import RunDir
from dist_train.rundir.requests.stacks_request import RankStacks, ask_and_wait

_MODULE = "dist_train.rundir.requests.stacks_command"
_MARK = "dist-train stacks: "


def command_words(run_dir: Path, nodes: Sequence[int], ranks: Sequence[int]) -> list[str]:
    """The words after `python`."""
    return ["-P", "-m", _MODULE, str(run_dir), _text(nodes), _text(ranks)]


def read_output(text: str) -> list[RankStacks]:
    """The stacks in the command's output; raises ValueError where there are none."""
    lines = [line for line in text.splitlines() if line.startswith(_MARK)]
    if not lines:
        raise ValueError(text.strip().splitlines()[-1] if text.strip() else "no output")
    return [RankStacks(**one) for one in json.loads(lines[-1].removeprefix(_MARK))]


def main(argv: Sequence[str]) -> None:
    """Ask, wait, print."""
    run_dir, nodes, ranks = argv
    found = ask_and_wait(RunDir(Path(run_dir)), _numbers(nodes), _numbers(ranks))
    sys.stdout.write(_MARK + json.dumps([asdict(one) for one in found]) + "\n")


def _text(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


if __name__ == "__main__":
    main(sys.argv[1:])
