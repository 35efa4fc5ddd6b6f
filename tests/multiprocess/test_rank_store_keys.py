"""The ranks' store in a real run: on loopback, and the keys of dt.init behind the attempt's prefix."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Launch

pytestmark = pytest.mark.multiprocess
SCRIPT = """
import json, os, pathlib
import torch
import dist_train as dt
from torch.distributed import TCPStore
with dt.init() as run:
    if run.is_main:
        store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        seen = [os.environ["MASTER_ADDR"], os.environ["DIST_TRAIN_STORE_PREFIX"], store.list_keys()]
        pathlib.Path("seen.json").write_text(json.dumps(seen))
    torch.distributed.barrier()
"""


def test_all_keys_of_dt_init_have_the_attempts_prefix(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    finished = launch("keys", "--nodes", 2, "--gpus-per-node", 1, "train.py")
    assert finished.cli.code == 0, finished.cli
    address, prefix, keys = json.loads((tmp_path / "seen.json").read_text())
    assert address == "127.0.0.1"
    assert len(prefix) == 64
    # What is left is torch's own count of the clients of its store.
    assert [key for key in keys if not key.startswith(f"{prefix}/") and key != "init/"] == []
    assert sum(key.startswith(f"{prefix}/") for key in keys) > 3
