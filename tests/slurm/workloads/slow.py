"""Digits that come slowly, by waiting: a run that is still running when a signal comes, and needs no core.

Nothing here changes a bit. SLOW_S is the wait per sample in the first attempt; with WITNESS set to
a folder, each rank starts a bare `sleep` and notes, ten times a second, whether it and the
loader's workers are alive and whether a stop has been asked for.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path

import psutil
import torch
from torch.utils.data import Dataset

from dist_train.datasets.digits import Digits
from dist_train.models.convnet import ConvNet

convnet = ConvNet


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


def _witness(folder: Path, child: subprocess.Popen[bytes]) -> None:
    me = psutil.Process()
    with (folder / f"rank-{os.environ['RANK']}-of-{os.environ['DIST_TRAIN_ATTEMPT']}.jsonl").open(
        "w"
    ) as file:
        while True:
            stop = Path(os.environ["DIST_TRAIN_STOP_FILE"]).read_bytes()[0]
            workers = sum(_lives(kin) for kin in me.children() if kin.pid != child.pid)
            line = {"stop": stop, "sleep": child.poll() is None, "workers": workers}
            file.write(json.dumps(line) + "\n")
            file.flush()
            time.sleep(0.02)


if os.environ.get("WITNESS") and "RANK" in os.environ:
    threading.Thread(
        target=_witness,
        args=(Path(os.environ["WITNESS"]), subprocess.Popen(["sleep", "300"])),
        daemon=True,
    ).start()
