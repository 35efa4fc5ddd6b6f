"""Common mistakes with devices and loader workers, as one table: the rank's exit code and its output.

Each row is a script, run by the code that every rank runs, in a forked child. What only a GPU can say is
raised here with torch's own text; everything else is torch's doing.
"""

from __future__ import annotations

import contextlib
import io
import logging
import multiprocessing
import os
import shutil
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest

from dist_train.agent.workers import worker_main
from dist_train.testing.plugin import require

HEAD = """
import ctypes, os, signal, sys
import torch
import dist_train as dt

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    def forward(self, batch):
        return self.head(self.body(batch["image"]))

class Items(torch.utils.data.Dataset):
    def __init__(self, item):
        self.item = item

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.item()

def pretend(**answers):  # as if torch saw GPUs
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda answer=answer: answer)

batch = {"image": torch.zeros(1, 2)}
"""
SMALL_SHM = """
libc = ctypes.CDLL(None, use_errno=True)  # a /dev/shm of 1 MiB, for this process and its children only
assert libc.unshare(0x20000) == 0
assert libc.mount(b"none", b"/", None, 0x44000, None) == 0
assert libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=1m") == 0
for batch in dt.loader(Items(lambda: torch.zeros(600_000)), 2, workers=1):
    pass
"""
TABLE = [
    # situation, script, exit code, text
    (
        "a parameter on another device",
        "model = Net(); model.head.to('meta'); model(batch)",
        1,
        "parameter or buffer 'head.weight', 'head.bias' of Net are on meta, the rest on cpu: dt.prepare(",
    ),
    (
        "a batch entry on another device",
        "Net().to('meta')(batch)",
        1,
        "argument \"batch['image']\" of Net.forward is on cpu, its parameters on meta: batch = dt.to_device(",
    ),
    (
        "output and target on different devices",
        "output = Net()(batch); target = torch.zeros(1, 2, device='meta'); "
        "torch.nn.functional.mse_loss(output, target)",
        1,
        "'target' is on meta",
    ),
    ("Invalid device string, to torch", "torch.zeros(1).to('cuda: 0')", 1, "hint: did you mean 'cuda:0'?"),
    ("Invalid device string, to us", "dt.to_device(batch, 'cuda: 0')", 78, "did you mean 'cuda:0'?"),
    (
        "an invalid ordinal, to torch",
        "pretend(device_count=2); raise RuntimeError('CUDA error: invalid device ordinal')",
        1,
        "hint: 2 GPU(s) are visible to this process (cuda:0 to cuda:1; CUDA_VISIBLE_DEVICES=2,3): they are",
    ),
    (
        "an invalid ordinal, to us",
        "pretend(is_available=True, device_count=2); dt.to_device(batch, 'cuda:2')",
        78,
        "device 'cuda:2': 2 GPU(s) are visible to this process",
    ),
    (
        "CUDA_VISIBLE_DEVICES set after CUDA started",
        "pretend(is_initialized=True); os.environ['CUDA_VISIBLE_DEVICES'] = '1'; dt.init().close()",
        0,  # it trains, on another GPU than was meant, which is reported
        "CUDA has started already: a change after that does nothing, cuda:0 is still the old one",
    ),
    (
        "a loader worker killed",
        "for batch in dt.loader(Items(lambda: os.kill(os.getpid(), signal.SIGKILL)), 2, workers=1): pass",
        1,
        "hint: out of memory, or of /dev/shm (",
    ),
    (
        "/dev/shm too small",
        SMALL_SHM,
        1,
        "hint: /dev/shm is full (1.0 MiB in all): a larger /dev/shm (docker run --shm-size=8g, --shm 8Gi on",
    ),
    (
        "/dev/shm too small, said before",
        SMALL_SHM,
        1,
        "/dev/shm has 1 MiB, and 1 loader worker(s) hand over their batches there",
    ),
    (
        "saved on a GPU, loaded without one",
        "raise RuntimeError('Attempting to deserialize object on a CUDA device but')",
        1,
        'hint: torch.load(path, map_location="cpu")',
    ),
]


def _as_rank(meeting: str, script: str) -> list[Any]:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        del os.environ[name]
    os.environ["CUDA_VISIBLE_DEVICES"] = "2,3"
    logging.root.handlers.clear()  # pytest's
    multiprocessing.current_process()._config["daemon"] = False  # a rank may start loader workers
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = worker_main._run("script", script, [])
    return [code, said.getvalue()]


def _may_mount() -> bool:
    return (
        bool(shutil.which("unshare"))
        and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0
    )


@pytest.mark.proves(
    "Errors about devices and loaders end with a hint, and with the right exit code",
    limits="no GPU: the invalid ordinal and a checkpoint from a GPU with torch's own text",
)
@pytest.mark.parametrize(("situation", "lines", "code", "hint"), TABLE)
def test_each_is_reported_with_its_hint(
    ranks: Any, tmp_path: Path, situation: str, lines: str, code: int, hint: str
) -> None:
    if "/dev/shm too small" in situation and not _may_mount():
        require("shm", "a /dev/shm of its own needs root and mount namespaces")
    script = tmp_path / "train.py"
    script.write_text(HEAD + textwrap.dedent(lines))
    ((found, said),) = ranks(1, _as_rank, str(script))
    assert (found, hint in said) == (code, True), f"{situation}: exit code {found}\n{said}"
