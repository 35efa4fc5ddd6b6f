"""`--gpus`: which of the visible GPUs a job gets, and notices on the choice."""

from __future__ import annotations

from dist_train.errors import ConfigError
from dist_train.jobs.gpus import Gpu, find


def choose_gpus(text: str, gpus: list[Gpu], count: int | None) -> list[Gpu]:
    """The GPUs that `--gpus` means.

    Args:
        text: `auto`, numbers from 0 among the visible ones, or UUIDs (their beginnings): `0,3`.
        gpus: the visible ones.
        count: how many the job needs; `auto` takes so many (None: all, least used first), a list may
            name more (a process may drive several).

    Raises:
        ConfigError: a name that means none or several, one named twice, fewer than `count`.
    """
    chosen = least_used(gpus) if text == "auto" else [_named(word, text, gpus) for word in text.split(",")]
    for gpu in chosen:
        if chosen.count(gpu) > 1:
            raise _refused(text, gpus, f"GPU {gpu.number} is named twice")
    needed = count or 1
    if len(chosen) < needed:
        what = f"{len(gpus)} are visible here" if text == "auto" else f"it names {len(chosen)}"
        raise ConfigError(
            f"--gpus {text}: {needed} GPUs are needed, {what}",
            hint=f"ask for at most {len(chosen)} with --nodes and --gpus-per-node"
            if chosen
            else f"add --device cpu to run {needed} process(es) on CPU",
        )
    return chosen[:count] if text == "auto" else chosen


def least_used(gpus: list[Gpu]) -> list[Gpu]:
    """Fewest processes first, then least memory (in per cent: idle cards differ by some MiB), then idlest."""
    return sorted(
        gpus, key=lambda gpu: (len(gpu.processes), memory_share(gpu), gpu.utilisation or 0, gpu.index)
    )


def memory_share(gpu: Gpu) -> int:
    """Memory in use, in per cent of the whole."""
    return round(100 * gpu.memory_used / gpu.memory_total) if gpu.memory_total else 0


def use_in_words(gpu: Gpu) -> str:
    """`2 processes, 61 % of memory, 97 % busy`."""
    count = len(gpu.processes)
    busy = "" if gpu.utilisation is None else f", {gpu.utilisation} % busy"
    return f"{count} process{'' if count == 1 else 'es'}, {memory_share(gpu)} % of memory{busy}"


def choice_in_words(text: str, chosen: list[Gpu], gpus: list[Gpu]) -> str:
    """What `--gpus` came to: each GPU by number, UUID and, for `auto`, why this one."""
    if text != "auto":
        return f"--gpus {text}: " + ", ".join(f"GPU {gpu.number} ({gpu.uuid})" for gpu in chosen)
    taken = "; ".join(f"GPU {gpu.number} ({use_in_words(gpu)})" for gpu in chosen)
    left = "; ".join(f"GPU {gpu.number} ({use_in_words(gpu)})" for gpu in gpus if gpu not in chosen)
    return f"--gpus auto, least used first: {taken}" + (f"; left alone: {left}" if left else "")


def _named(word: str, text: str, gpus: list[Gpu]) -> Gpu:
    word = word.strip()
    if word.isdecimal():
        # Numbers count among the visible GPUs, as they do inside a process: CUDA counts only those.
        if int(word) < len(gpus):
            return gpus[int(word)]
        raise _refused(text, gpus, f"there is no GPU {word}")
    # `3:1` as nvidia-smi counts slices; for a plain number see above.
    found = find(word, gpus)
    if len(found) == 1:
        return found[0]
    raise _refused(text, gpus, f"{word!r} means {len(found)} of them" if found else f"there is no {word!r}")


def _refused(text: str, gpus: list[Gpu], cause: str) -> ConfigError:
    return ConfigError(
        f"--gpus {text}: this machine has {len(gpus)} visible GPU(s), and {cause}",
        cause="each is named once, by its number from 0 within CUDA_VISIBLE_DEVICES or its UUID's beginning",
        hint="`dist-train devices` lists them; --device cpu runs without one",
    )
