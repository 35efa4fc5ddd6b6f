"""Split a batch over several devices: nn.DataParallel, and one process per device in its place.

python data_parallel.py                                     # the tutorial's form alone
dist-train launch --gpus-per-node 2 data_parallel.py        # and ours: each batch split over two processes

The traps: DataParallel copies the model at every step, its first GPU holds all outputs and is full
while the others are half empty, and without a GPU it silently runs the whole batch in one piece.
Every name in its state dict begins with `module.`. One process per device has none of these problems;
for old code that must stay one process, `strategy: dp` is a balanced DataParallel.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dist_train as dt


def tutorial(data: TensorDataset, batch_size: int, devices: int) -> tuple[list[int], list[str]]:
    """(rows per forward pass of one replica, names in the state dict)."""
    cards = list(range(min(devices, torch.cuda.device_count())))
    plain = nn.Linear(5, 2).to("cuda:0" if cards else "cpu")
    rows: list[int] = []
    plain.register_forward_hook(lambda module, args, output: rows.append(len(args[0])))
    model = nn.DataParallel(plain, device_ids=cards)
    for (x,) in DataLoader(data, batch_size=batch_size):
        model(x)
    return rows, list(model.state_dict())


def ours(data: TensorDataset, batch_size: int) -> tuple[list[int], list[str]]:
    """The same for this process, one per device; batch_size is that of the whole job."""
    rows: list[int] = []
    with dt.init(seed=0) as run:
        model = dt.prepare(nn.Linear(5, 2))
        for (x,) in dt.loader(data, batch_size=batch_size, shuffle=False):
            rows.append(len(model(x.to(run.device))))
        return rows, list(dt.unwrap(model).state_dict())


if __name__ == "__main__":
    torch.manual_seed(0)  # each process draws the data: it must be the same in all of them
    numbers = TensorDataset(torch.randn(100, 5))
    for name, (rows, names) in (("tutorial", tutorial(numbers, 30, 2)), ("ours", ours(numbers, 30))):
        print(f"{name + ':':10}rows per forward pass {rows}, saved as {names}")
