"""Digits that come slowly, by waiting: a run that is still running when a signal comes, and needs no core.

Nothing here changes a bit. SLOW_S is the wait per sample in the first attempt; with WITNESS set to
a folder, each rank starts a process of multiprocessing, and by it a resource tracker, and notes, fifty
times a second, whether it and the loader's workers are alive and whether a stop has been asked for.
"""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import threading
import time
from multiprocessing import resource_tracker
from pathlib import Path

import psutil
import torch
from torch.utils.data import Dataset

from dist_train.datasets.digits import Digits
from dist_train.models.convnet import ConvNet

convnet = ConvNet
# Set before multiprocessing's own exit function ends the daemonic process.
_ends = threading.Event()
atexit.register(_ends.set)


class SlowDigits(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The digits, each after a wait of SLOW_S seconds."""

    def __init__(self) -> None:
        self._digits = Digits("train", augment=True)
        first = os.environ.get("DIST_TRAIN_ATTEMPT", "0") == "0"
        self._wait_s = float(os.environ.get("SLOW_S", "0")) if first else 0.0
        self.dataset_id = self._digits.dataset_id
        self.deterministic_items = False

    def __len__(self) -> int:
        return len(self._digits)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(self._wait_s)
        return self._digits[index]


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _workers(me: psutil.Process) -> int:
    started = [kin for kin in me.children() if _lives(kin)]
    return sum("multiprocessing" not in " ".join(kin.cmdline()) for kin in started)


def _witness(folder: Path) -> None:
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(300,), daemon=True)
    child.start()
    me = psutil.Process()
    with (folder / f"rank-{os.environ['RANK']}-of-{os.environ['DIST_TRAIN_ATTEMPT']}.jsonl").open(
        "w"
    ) as file:
        while True:
            stop = Path(os.environ["DIST_TRAIN_STOP_FILE"]).read_bytes()[0]
            line = {"stop": stop, "spawned": child.is_alive(), "workers": _workers(me)}
            if _ends.is_set():
                return
            file.write(json.dumps(line) + "\n")
            file.flush()
            time.sleep(0.02)


if os.environ.get("WITNESS") and "RANK" in os.environ:
    # In this thread: on Python 3.11 the start of the tracker unblocks SIGTERM in it (cpython #127586).
    resource_tracker.ensure_running()
    threading.Thread(target=_witness, args=(Path(os.environ["WITNESS"]),), daemon=True).start()
