"""One batch over several devices: nn.DataParallel, and what has come after it.

python data_parallel.py                                     # the tutorial's form alone
dist-train launch --gpus-per-node 2 data_parallel.py        # ours beside it: two processes share each batch

The traps: DataParallel copies the model at every step, its first card holds all outputs and is full
while the others are half empty, and where it finds no GPU it runs the whole batch in one piece and says
nothing. Every name in its state dict begins with `module.`. One process per device has none of this;
old code that must stay one process finds DataParallel, balanced, as `strategy: dp`.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dist_train as dt


def tutorial(data: TensorDataset, batch_size: int, devices: int) -> tuple[list[int], list[str]]:
    """(rows per forward pass of one copy of the model, names that would be saved)."""
    cards = list(range(min(devices, torch.cuda.device_count())))
    plain = nn.Linear(5, 2).to("cuda:0" if cards else "cpu")
    rows: list[int] = []
    plain.register_forward_hook(lambda module, args, output: rows.append(len(args[0])))
    model = nn.DataParallel(plain, device_ids=cards)
    for (x,) in DataLoader(data, batch_size=batch_size):
        model(x)
    return rows, list(model.state_dict())


def ours(data: TensorDataset, batch_size: int) -> tuple[list[int], list[str]]:
    """The same in this process; there are as many as devices, and batch_size is that of all together."""
    rows: list[int] = []
    with dt.init(seed=0) as run:
        model = dt.prepare(nn.Linear(5, 2))
        for (x,) in dt.loader(data, batch_size=batch_size, shuffle=False):
            rows.append(len(model(x.to(run.device))))
        return rows, list(dt.unwrap(model).state_dict())


if __name__ == "__main__":
    numbers = TensorDataset(torch.randn(100, 5))
    for name, (rows, names) in (("tutorial", tutorial(numbers, 30, 2)), ("ours", ours(numbers, 30))):
        print(f"{name + ':':10}rows per forward pass {rows}, saved as {names}")
