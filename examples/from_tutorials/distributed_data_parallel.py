"""One process per device: DistributedDataParallel, and a last batch that is uneven.

dist-train launch --gpus-per-node 2 distributed_data_parallel.py

Seven points, batches of four, two processes: the second step has three points. The tutorial's sampler
repeats the first point, and DDP averages the two processes' means, so that the result differs from
that of one process. `dt.loader` reads each point once, and `dt.prepare` weights each process by its
number of points: the trained weights are those of one process, at any number of processes.
"""

import torch
import torch.distributed as torch_dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import dist_train as dt

POINTS = TensorDataset(torch.arange(7.0)[:, None] / 7, torch.tensor([[1.0, -1, 2, -2, 3, -3, 4]]).T)


def line() -> nn.Linear:
    """The model, with the same weights in every process."""
    torch.manual_seed(0)
    return nn.Linear(1, 1)


def train(model: nn.Module, batches: object) -> None:
    """One epoch; the loop is the same in all three forms."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for x, y in batches:  # type: ignore[attr-defined]
        mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def alone() -> list[float]:
    """The result of one process: (slope, offset)."""
    model = line()
    train(model, DataLoader(POINTS, batch_size=4))
    return [model.weight.item(), model.bias.item()]


def tutorial() -> list[float]:
    """Sampler, per-process batch size, wrap; the process group exists."""
    world_size = torch_dist.get_world_size()
    sampler = DistributedSampler(POINTS, num_replicas=world_size, rank=torch_dist.get_rank(), shuffle=False)
    model = nn.parallel.DistributedDataParallel(line())
    train(model, DataLoader(POINTS, batch_size=4 // world_size, sampler=sampler))
    return [model.module.weight.item(), model.module.bias.item()]


def ours() -> list[float]:
    """The same in two lines; 4 is the batch of the whole job."""
    model = dt.prepare(line())
    train(model, dt.loader(POINTS, batch_size=4, shuffle=False))
    return [dt.unwrap(model).weight.item(), dt.unwrap(model).bias.item()]


if __name__ == "__main__":
    with dt.init(seed=0, device="cpu") as run:
        if run.world_size == 1:
            raise SystemExit("start two: dist-train launch --gpus-per-node 2 distributed_data_parallel.py")
        for form in (alone, tutorial, ours):
            print(f"{form.__name__ + ':':10}{form()}")
