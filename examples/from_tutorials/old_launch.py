"""A script of `python -m torch.distributed.launch`: it expects to be told --local_rank.

dist-train launch --gpus-per-node 2 old_launch.py           # each process is told its own; a line says so
torchrun --nproc-per-node 2 old_launch.py                   # none is: both take the default, and GPU 0

The trap: torchrun hands the number over in LOCAL_RANK alone, so that an old script takes its default and
all processes crowd on the first GPU, at a fraction of the speed and without an error. dist-train reads
the script, and where it declares --local_rank or --local-rank hands that over too
(`--legacy-local-rank none` turns it off; `dash` and `underscore` insist).
"""

import argparse
import os
from collections.abc import Sequence

import dist_train as dt


def tutorial(words: Sequence[str]) -> int:
    """This process's number on its node, as old scripts learn it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=0)
    return parser.parse_args(words).local_rank


def ours(words: Sequence[str]) -> int:
    """From the environment, whoever started us."""
    return dt.env.RankInfo.from_env().local_rank


if __name__ == "__main__":
    import sys

    print(f"I am {os.environ.get('LOCAL_RANK', '0')}; tutorial: {tutorial(sys.argv[1:])}, ours: {ours([])}")
