"""The parent's handle of a worker process."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from prediction_cases import Slow

from dist_train.inference.serialization import pack
from dist_train.inference.worker_handle import Worker


def test_ctrl_c_never_reaches_a_spawned_worker_from_its_first_instruction_on() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    worker = Worker("cpu", 1, pack((Slow(), None)), "spawn")
    try:
        for _ in range(20):
            status = Path(f"/proc/{worker.pid}/status").read_text()
            masks = [
                int(line.split()[1], 16) for line in status.splitlines() if line[:6] in ("SigBlk", "SigIgn")
            ]
            assert any(mask >> (signal.SIGINT - 1) & 1 for mask in masks)
            time.sleep(0.01)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    finally:
        worker.end()
