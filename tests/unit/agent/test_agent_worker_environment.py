"""What the agent adds to a rank's environment, and what it keeps for itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from dist_train import env
from dist_train.agent.command_line import read_settings
from dist_train.agent.workers.rank_gpus import gpu_environ
from dist_train.agent.workers.worker_environment import WORKER_IDENTICAL, worker_environment


@pytest.mark.parametrize(
    ("environ", "device", "added"),
    [
        ({}, "cpu", {}),
        ({}, "cuda", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "cuda", {}),  # the user's own word
        ({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, "cuda", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
    ],
)
def test_rank_1(environ: dict[str, str], device: str, added: dict[str, str]) -> None:
    assert gpu_environ(environ, device, local_rank=1) == added


def test_what_torch_assigns_the_agents_ranks_by_reaches_no_rank(tmp_path: Path) -> None:
    """A torchrun that the script starts assigns its own ranks."""
    environ = {
        env.RUN_DIR: str(tmp_path),
        env.RUN_ID: "train",
        env.LAUNCHER: "local",
        env.NNODES: "1",
        env.NPROC_PER_NODE: "2",
        env.NODE_RANK: "0",
        env.RDZV: "tcp://127.0.0.1:1",
        env.MAX_RESTARTS: "0",
        env.GRACE_S: "60",
    }
    settings = read_settings(["--device", "cpu", "--folder", "/", "script", "/train.py"], environ)
    inherited = {"PATH": "/bin", WORKER_IDENTICAL: "1"}
    built = worker_environment(settings, inherited, 0, 1, 1, "127.0.0.1", 1)
    assert WORKER_IDENTICAL == "TORCH_ELASTIC_WORKER_IDENTICAL"
    assert (built["PATH"], built["RANK"], WORKER_IDENTICAL in built) == ("/bin", "1", False)
