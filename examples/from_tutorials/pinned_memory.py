"""Pinned memory and `non_blocking`: copies to the GPU that overlap with its computation.

python pinned_memory.py

The traps: `pin_memory()` fails on a machine without a GPU, so that a script that pins needs one;
`non_blocking=True` from memory that is not pinned is a blocking copy; and from the GPU to the CPU it
returns a tensor before its bytes have arrived. `dt.loader` pins if the run is on a GPU and copies the next
batch while the current one trains; `dt.to_device` is non-blocking where that is safe.
"""

import torch
from torch.utils.data import TensorDataset

import dist_train as dt


def tutorial(data: TensorDataset, device: torch.device) -> list[torch.Tensor]:
    """The batches on the device: pinned by hand, copied without waiting."""
    batches = torch.utils.data.DataLoader(data, batch_size=2)
    return [x.pin_memory().to(device, non_blocking=True) for (x,) in batches]


def ours(data: TensorDataset, device: torch.device) -> list[torch.Tensor]:
    """The same, here and on a GPU."""
    return [dt.to_device(x, device) for (x,) in dt.loader(data, batch_size=2, shuffle=False)]


if __name__ == "__main__":
    with dt.init(seed=0) as run:
        for form in (tutorial, ours):
            try:
                batches = form(TensorDataset(torch.arange(6.0)), run.device)
                print(f"{form.__name__}: {batches}")
            except RuntimeError as error:
                print(f"{form.__name__}: on {run.device}: {str(error).splitlines()[0]}")
