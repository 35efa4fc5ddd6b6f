"""One rank that forms a group, trains one step and destroys the group, again and again; without dist-train.

    RANK=0 WORLD_SIZE=4 python teardown_rounds.py FOLDER ROUNDS [dt.init]

With the last word the process has called dt.init before, as a script that a user starts by hand does.

The DDP object is freed after destroy_process_group(), as by a script whose model is local to a function:
what torch 2.13 can hang on. Each finished round is a line of the output; SIGUSR1 adds the stack.
"""

import faulthandler
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def one_round(path: str) -> DistributedDataParallel:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=dist.FileStore(path, ranks), rank=rank, world_size=ranks)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    dist.destroy_process_group()
    return model


if __name__ == "__main__":
    # In C, without the interpreter's lock: it answers in a process that hangs with it.
    faulthandler.register(signal.SIGUSR1)
    if sys.argv[3:] == ["dt.init"]:
        import dist_train

        with dist_train.init(device="cpu", init_method=f"file://{sys.argv[1]}/store-init"):
            pass
    for number in range(int(sys.argv[2])):
        one_round(f"{sys.argv[1]}/store-{number}")
        print(number, flush=True)
