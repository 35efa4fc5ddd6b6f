"""Who trains on which sample: DistributedSampler, `set_epoch`, and the samples that count twice.

python samplers.py

The traps: without `sampler.set_epoch(epoch)` every epoch has the same order, and nothing says so; and
where the samples do not divide by the processes some are given out twice, also in evaluation, so that an
accuracy depends on how many processes measured it. `dt.loader` advances by itself and gives each sample
out once. `dt.data.DistributedSampler` is torch's with the same arguments, where you must keep that.
"""

import torch
from torch.utils.data import TensorDataset
from torch.utils.data.distributed import DistributedSampler

import dist_train as dt

Orders = list[list[list[int]]]  # [epoch][process][sample]


def tutorial(n: int, processes: int, epochs: int, shuffle: bool = True) -> Orders:
    """The tutorial's loop: the line `sampler.set_epoch(epoch)` is the one that it forgets."""
    samplers = [DistributedSampler(range(n), processes, rank, shuffle) for rank in range(processes)]  # type: ignore[arg-type]
    return [[list(sampler) for sampler in samplers] for _ in range(epochs)]


def ours(n: int, processes: int, epochs: int, shuffle: bool = True) -> Orders:
    """What `dt.loader` gives each process of a run; its arguments `rank` and `world_size` come from there."""
    data = TensorDataset(torch.arange(n))
    loaders = [
        dt.data.ExactLoader(data, batch_size=4, shuffle=shuffle, rank=rank, world_size=processes)
        for rank in range(processes)
    ]
    return [
        [
            [sample for share in loader.shares() for sample in share.batch[0].tolist()[: share.count]]
            for loader in loaders
        ]
        for _ in range(epochs)
    ]


if __name__ == "__main__":
    for form in (tutorial, ours):
        for epoch, by_process in enumerate(form(n=7, processes=2, epochs=2)):
            seen = sorted(sample for samples in by_process for sample in samples)
            print(f"{form.__name__ + ':':10}epoch {epoch}: {by_process}, in all {seen}")
