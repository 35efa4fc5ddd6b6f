"""Names of devices as people write them: `cuda:0`, and what was meant by `cuda: 0`."""

from __future__ import annotations

import re

from dist_train.near_names import nearest

_TYPES = ("cpu", "cuda", "meta", "mps", "xpu", "hpu")
# Other tools' names for the same device types.
_OTHER_WORDS = {"gpu": "cuda", "nvidia": "cuda", "host": "cpu", "hip": "cuda", "rocm": "cuda", "amd": "cuda"}


UNSUPPORTED_DEVICES = "xpu, mps and hpu are not supported: ranks compute on cpu (gloo) or cuda (NCCL, RCCL)"
_AMD = ("rocm", "hip", "amd")


def why_no_device(text: str) -> str | None:
    """Why `--device` does not take this word, where people have a reason to expect it."""
    word = text.strip().lower().partition(":")[0]
    if word in ("xpu", "mps", "hpu"):
        return UNSUPPORTED_DEVICES
    return "AMD's GPUs are cuda, as torch calls them: --device cuda" if word in _AMD else None


def nearest_device_name(text: str) -> str:
    """The right name that is nearest to a wrong one: `cuda:0` for `cuda: 0`, `CUDA:0`, `gpu0`, `cuda 0`."""
    word = text.strip().lower()
    kind = re.match(r"[a-z]*", word)
    name = _nearest_type(kind.group() if kind else "")
    number = re.search(r"\d+", word)
    return name if number is None or name == "cpu" else f"{name}:{int(number.group())}"


def _nearest_type(word: str) -> str:
    if word in _OTHER_WORDS:
        return _OTHER_WORDS[word]
    return nearest(word, _TYPES, cutoff=0.5) or "cuda"


def visible_names(count: int) -> str:
    """What a process with so many GPUs may say: `cuda:0 to cuda:3`."""
    return "none" if not count else "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
