"""Pick a GPU, and know that you have it.

dist-train devices                                  # index, UUID, memory, who is on it
dist-train launch --gpus auto pick_a_gpu.py         # the least used one
dist-train launch --gpus 3 pick_a_gpu.py            # that one; in the program its name is cuda:0
python pick_a_gpu.py

The traps: `cuda:0 if available else cpu` takes the CPU without a word when the driver is broken, and a
job of an hour takes a week. CUDA_VISIBLE_DEVICES numbers the cards anew (with 3, card 3 is cuda:0), and
set in the program it comes too late once CUDA has started; --gpus sets it before. "cuda: 0" is no device.
"""

import torch

import dist_train as dt


def tutorial(wanted: str) -> torch.device:
    """The line of every tutorial: what was wanted is not asked."""
    return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def ours(wanted: str) -> torch.device:
    """The wanted kind, or an error that says why not; `launch` says aloud what `auto` has come to."""
    with dt.init(device=wanted) as run:
        return run.device


def named(text: str) -> torch.device:
    """A device by its name; a misspelt one is answered with the nearest."""
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
