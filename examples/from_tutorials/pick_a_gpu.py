"""Pick a GPU, and get an error instead of the CPU.

dist-train devices                                  # index, UUID, memory, processes
dist-train launch --gpus auto pick_a_gpu.py         # the least used one
dist-train launch --gpus 3 pick_a_gpu.py            # GPU 3; in the program its name is cuda:0
python pick_a_gpu.py

The traps: `cuda:0 if available else cpu` silently uses the CPU when the driver is broken, and a job of
an hour takes a week. CUDA_VISIBLE_DEVICES renumbers the GPUs (with 3, GPU 3 is cuda:0), and has no effect
if the program sets it after CUDA has started; --gpus sets it before. "cuda: 0" is not a device name.
"""

import torch

import dist_train as dt


def tutorial(wanted: str) -> torch.device:
    """The line of every tutorial: it ignores what was wanted."""
    return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def ours(wanted: str) -> torch.device:
    """The wanted device type, or an error with the reason; `launch` logs which one `auto` is."""
    with dt.init(device=wanted) as run:
        return run.device


def named(text: str) -> torch.device:
    """A device by its name; the error for a misspelt one names the nearest."""
    return dt.to_device(torch.zeros(1), text).device


if __name__ == "__main__":
    print("tutorial: wanted cuda, got", tutorial("cuda"))
    for wanted in ("cuda", "auto"):
        try:
            print(f"ours:     wanted {wanted}, got", ours(wanted))
        except dt.errors.ConfigError as error:
            print(f"ours:     wanted {wanted}:", error)
    try:
        named("cuda: 0")
    except dt.errors.ConfigError as error:
        print("ours:    ", error)
