"""Which rank trains on which sample: DistributedSampler, `set_epoch`, and repeated samples.

python samplers.py

The traps: without `sampler.set_epoch(epoch)` every epoch silently has the same order; and if the number
of samples is not a multiple of the processes some are repeated, also in evaluation, so that an accuracy
depends on the number of processes. `dt.loader` advances the epoch itself and reads each sample once.
`dt.data.DistributedSampler` is a drop-in for torch's, with the same arguments.
"""

import torch
from torch.utils.data import TensorDataset
from torch.utils.data.distributed import DistributedSampler

import dist_train as dt

Orders = list[list[list[int]]]  # [epoch][process][sample]


def tutorial(n: int, processes: int, epochs: int, shuffle: bool = True) -> Orders:
    """The tutorial's loop, which lacks the line `sampler.set_epoch(epoch)`."""
    samplers = [DistributedSampler(range(n), processes, rank, shuffle) for rank in range(processes)]  # type: ignore[arg-type]
    return [[list(sampler) for sampler in samplers] for _ in range(epochs)]


def ours(n: int, processes: int, epochs: int, shuffle: bool = True) -> Orders:
    """What `dt.loader` reads on each process of a run, which gives it `rank` and `world_size`."""
    data = TensorDataset(torch.arange(n))
    loaders = [
        dt.data.ExactLoader(data, batch_size=4, shuffle=shuffle, rank=rank, world_size=processes)
        for rank in range(processes)
    ]
    return [
        [
            [
                sample
                for micro_batch in loader.micro_batches()
                for sample in micro_batch.batch[0].tolist()[: micro_batch.count]
            ]
            for loader in loaders
        ]
        for _ in range(epochs)
    ]


if __name__ == "__main__":
    for form in (tutorial, ours):
        for epoch, by_process in enumerate(form(n=7, processes=2, epochs=2)):
            seen = sorted(sample for samples in by_process for sample in samples)
            print(f"{form.__name__ + ':':10}epoch {epoch}: {by_process}, in all {seen}")
