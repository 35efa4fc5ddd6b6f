"""What scripts leave behind, with forked and with spawned ranks: shared memory and running programs."""

from __future__ import annotations

import textwrap
import uuid
from pathlib import Path

import pytest
from warm_commands.warm_launch import launch_cli

from dist_train import env

SCRIPT = """
    import os, subprocess, sys, time
    from multiprocessing.shared_memory import SharedMemory

    rank, name, how = int(os.environ["RANK"]), sys.argv[1], sys.argv[2]
    memory = SharedMemory(create=True, name=f"{name}-{rank}", size=100)
    if how == "killed" and rank == 1:
        os.kill(os.getpid(), 9)
    if how == "well":
        subprocess.Popen(["sleep", "63"], start_new_session=rank == 0)
    time.sleep(60 if how == "killed" else 0)
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("how", ["well", "killed"])
def test_leaked_shared_memory_is_removed_and_a_program_left_running_is_said(
    tmp_path: Path, method: str, how: str
) -> None:
    (tmp_path / "leaks.py").write_text(textwrap.dedent(SCRIPT))
    name = f"dist-train-{uuid.uuid4().hex}"
    words = [
        "launch",
        "--device",
        "cpu",
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "0",
        "leaks.py",
        name,
        how,
    ]
    result = launch_cli(words, tmp_path, {env.START_METHOD: method}, timeout_s=120)
    assert (result.code == 0) == (how == "well"), result
    assert not list(Path("/dev/shm").glob(f"{name}-*")), result
    assert result.stderr.count("has left a process running") == (how == "well"), result


SHARES = """
    import os
    from pathlib import Path
    import torch
    import torch.multiprocessing

    torch.multiprocessing.set_sharing_strategy("file_system")
    tensor = torch.ones(100_000).share_memory_()
    name = tensor.untyped_storage()._share_filename_cpu_()[1]
    Path(f"name-{os.environ['RANK']}").write_bytes(name)
"""


@pytest.mark.multiprocess
def test_what_torch_shares_by_files_is_removed_and_no_program_is_said(tmp_path: Path) -> None:
    (tmp_path / "shares.py").write_text(textwrap.dedent(SHARES))
    words = ["launch", "--device", "cpu", "--nproc-per-node", "2", "shares.py"]
    result = launch_cli(words, tmp_path, {}, timeout_s=120)
    assert result.code == 0, result
    names = [(tmp_path / f"name-{rank}").read_text() for rank in range(2)]
    assert not [name for name in names if Path(f"/dev/shm{name}").exists()], result
    assert "has left a process running" not in result.stderr
