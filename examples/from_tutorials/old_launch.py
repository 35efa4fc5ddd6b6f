"""A script for `python -m torch.distributed.launch`: it expects the argument --local_rank.

dist-train launch --gpus-per-node 2 old_launch.py           # each process gets its own, as the log says
torchrun --nproc-per-node 2 old_launch.py                   # neither does: both use the default, GPU 0

The trap: torchrun passes the local rank only in LOCAL_RANK, so that an old script uses its default and
all processes share the first GPU, at a fraction of the speed and without an error. dist-train parses
the script, and if it declares --local_rank or --local-rank passes that too
(`--legacy-local-rank none` turns it off; `dash` and `underscore` force one spelling).
"""

import argparse
import os
from collections.abc import Sequence

import dist_train as dt


def tutorial(words: Sequence[str]) -> int:
    """This process's rank on its node, from the argument."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=0)
    return parser.parse_args(words).local_rank


def ours(words: Sequence[str]) -> int:
    """From the environment, under any launcher."""
    return dt.env.RankInfo.from_env().local_rank


if __name__ == "__main__":
    import sys

    print(f"I am {os.environ.get('LOCAL_RANK', '0')}; tutorial: {tutorial(sys.argv[1:])}, ours: {ours([])}")
