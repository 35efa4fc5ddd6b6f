"""`--bind` on this machine: what the kernel says in ranks and in their loader workers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from conftest import Launch

from dist_train.jobs.cores.cpu_topology import read_cores
from dist_train.rundir.cpu_list import parse_cpu_list
from dist_train.testing import launch_cli

CORES = read_cores(os.sched_getaffinity(0))
pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.skipif(len(CORES) < 2, reason="this machine gives fewer than two cores"),
]
SCRIPT = """
import json, os, sys
from pathlib import Path
at_start, torch_was_imported = sorted(os.sched_getaffinity(0)), "torch" in sys.modules
import torch
class Where(torch.utils.data.Dataset):
    def __len__(self): return 2
    def __getitem__(self, i): return torch.tensor([os.getpid(), *sorted(os.sched_getaffinity(0))])
worker = next(iter(torch.utils.data.DataLoader(Where(), num_workers=1, batch_size=1)))[0].tolist()
seen = [at_start, torch_was_imported, worker[0] != os.getpid(), worker[1:], os.environ["OMP_NUM_THREADS"]]
Path(f"seen-{os.environ['RANK']}.json").write_text(json.dumps(seen))
"""


@pytest.mark.proof
def test_ranks_and_their_loader_workers_run_on_cores_of_their_own(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    finished = launch("r", "--gpus-per-node", 2, "--bind", "cores", "train.py", timeout_s=90)
    assert finished.cli.code == 0, finished.cli
    seen = [json.loads((tmp_path / f"seen-{rank}.json").read_text()) for rank in range(2)]
    for at_start, torch_was_imported, by_worker, in_worker, threads in seen:
        assert (at_start, torch_was_imported, by_worker, threads) == (in_worker, False, True, "1")
    first, second = (set(at_start) for at_start, *_ in seen)
    assert not first & second
    assert first | second == os.sched_getaffinity(0)
    [event] = finished.events("attempt_started")
    assert [sorted(parse_cpu_list(text)) for text in event["nodes"][0]["cpus"].split("/")] == [
        at_start for at_start, *_ in seen
    ]
    line = f"node 0: CPUs by local rank (--bind cores): 0: {event['nodes'][0]['cpus'].split('/')[0]}, 1: "
    assert line in finished.cli.stderr
    assert line in (finished.run.logs / "node-0.log").read_text()


# NOT NVIDIA's library.
PYNVML = """
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 1
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetUUID(gpu): return "GPU-a"
def nvmlDeviceGetName(gpu): return "Pretend"
"""


@pytest.mark.proof
def test_on_gpus_the_threads_follow_the_cores(tmp_path: Path) -> None:
    """The driver is a stand-in with one GPU; the script does not compute on it."""
    (tmp_path / "stand_in").mkdir()
    (tmp_path / "stand_in" / "pynvml.py").write_text(PYNVML)
    (tmp_path / "train.py").write_text(SCRIPT)
    environ = {
        "CUDA_VISIBLE_DEVICES": None,
        "OMP_NUM_THREADS": None,
        "PYTHONPATH": str(tmp_path / "stand_in"),
    }
    words = ["launch", "--device", "cuda", "--gpus-per-node", "1", "--bind", "numa", "train.py"]
    cli = launch_cli(words, cwd=tmp_path, env=environ, timeout_s=90)
    assert cli.code == 0, cli
    cpus, *_, threads = json.loads((tmp_path / "seen-0.json").read_text())
    assert int(threads) <= len([core for core in CORES if set(core.cpus) <= set(cpus)])
    assert f"; {threads} thread" in cli.stderr
    assert "threads per rank: as many as a rank has cores (--bind numa)" in cli.stderr
