"""Launches of 4 ranks one after the other, forked from one process with torch loaded; without dist-train.

    python teardown_launches.py FOLDER LAUNCHES

Each rank trains one step, destroys its group, frees its model. In every tenth launch the interpreter's
own end frees it; the others end without it, as it takes a second of CPU in each rank.
Each launch is a line of the output; one that is not done in time is killed, and is the last.
"""

import os
import signal
import sys
import time

import torch._dynamo  # noqa: F401 -- DDP imports it: once here, not once in every rank
from teardown_rounds import one_round

RANKS = 4
LAUNCH_S = 90.0


def forked_ranks() -> list[int]:
    """Start the ranks: their pids; empty in a rank."""
    pids = []
    for rank in range(RANKS):
        pid = os.fork()
        if pid == 0:
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS))
            return []
        pids.append(pid)
    return pids


def wait_for(pids: list[int]) -> list[int | None]:
    """Their exit codes; None for those that had to be killed."""
    codes: dict[int, int | None] = {}
    deadline = time.monotonic() + LAUNCH_S
    while len(codes) < len(pids):
        for pid in set(pids) - codes.keys():
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                codes[pid] = None
            elif (ended := os.waitpid(pid, os.WNOHANG)) != (0, 0):
                codes[pid] = os.waitstatus_to_exitcode(ended[1])
        time.sleep(0.005)
    return [codes[pid] for pid in pids]


if __name__ == "__main__":
    for number in range(int(sys.argv[2])):
        started = forked_ranks()
        if not started:
            model = one_round(f"{sys.argv[1]}/store-{number}")
            if number % 10 == 9:
                break
            del model
            os._exit(0)
        exit_codes = wait_for(started)
        print(number, exit_codes, flush=True)
        if None in exit_codes:
            break
