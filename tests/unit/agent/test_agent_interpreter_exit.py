"""A rank leaves as `python train.py` does: what that flushes, joins and calls, and its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dist_train.testing import run_ranks

EVERYTHING = """
import atexit, csv, sys, threading, time, zipfile
out = open("rows.csv", "w", newline="")
writer = csv.writer(out)
for row in range(100):
    writer.writerow([row])
binary = open("tail.bin", "wb")
binary.write(b"x" * 10)
archive = zipfile.ZipFile("kept.zip", "w")
archive.writestr("a", "b")
def note(word):
    with open("order.txt", "a") as order:
        order.write(word + " ")
class Closes:
    def __init__(self):
        self.file = open("finalizer.txt", "w")
    def __del__(self):
        self.file.write("closed")
        self.file.close()
closes = Closes()
closes.cycle = closes
atexit.register(lambda: note("atexit:" + str(writer is not None)))
def later():
    time.sleep(0.2)
    note("thread")
threading.Thread(target=later).start()
note("script")
"""

CODES = {
    "end": ("x = 1", 0),
    "exit_3": ("import sys; sys.exit(3)", 3),
    "exit_text": ("import sys; sys.exit('no')", 1),
    "exit_none": ("import sys; sys.exit()", 0),
    "exit_300": ("import sys; sys.exit(300)", 300 & 0xFF),
    "exit_minus_1": ("import sys; sys.exit(-1)", 255),
    "raise": ("raise ValueError('boom')", 1),
    "atexit_raises": ("import atexit; atexit.register(lambda: 1 / 0)", 0),
    "os_exit": ("import os; os._exit(9)", 9),
    "closed_stdout": ("import os, sys; sys.stdout = open('/dev/full', 'w'); print('lost')", 120),
}


def run_rank(folder: Path, text: str, *target: str, plain: bool = False) -> subprocess.CompletedProcess[str]:
    """The script as a rank, or by the interpreter itself."""
    (folder / "train.py").write_text(text)
    worker = ["-P", "-m", "dist_train.agent.workers.worker_main", str(os.getpid())]
    words = ["train.py"] if plain else [*worker, *(target or ("script", "train.py"))]
    return subprocess.run(
        [sys.executable, "-u", *words], cwd=folder, capture_output=True, text=True, timeout=30, check=False
    )


def test_what_the_script_left_open_is_written_and_its_exit_hooks_run(tmp_path: Path) -> None:
    done = run_rank(tmp_path, EVERYTHING)
    assert done.returncode == 0, done
    assert (tmp_path / "rows.csv").read_text().split() == [str(row) for row in range(100)]
    assert (tmp_path / "tail.bin").read_bytes() == b"x" * 10
    assert zipfile.ZipFile(tmp_path / "kept.zip").read("a") == b"b"
    assert (tmp_path / "finalizer.txt").read_text() == "closed"
    assert (tmp_path / "order.txt").read_text().split() == ["script", "thread", "atexit:True"]


@pytest.mark.parametrize("name", CODES)
def test_the_exit_code_is_the_interpreters(tmp_path: Path, name: str) -> None:
    text, code = CODES[name]
    assert run_rank(tmp_path, text, plain=True).returncode == code, "what plain Python does"
    assert run_rank(tmp_path, text).returncode == code


def test_a_module_keeps_its_globals_to_the_end_too(tmp_path: Path) -> None:
    done = run_rank(tmp_path, EVERYTHING + "import sys; sys.exit(0)\n", "module", "train")
    assert done.returncode == 0, done
    assert len((tmp_path / "rows.csv").read_text().split()) == 100
    assert (tmp_path / "order.txt").read_text().split() == ["script", "thread", "atexit:True"]


def test_what_torch_would_hang_on_at_the_end_is_kept() -> None:
    """A DDP that outlives its group: the last reference to the group would be freed with the lock held."""

    def rank() -> tuple[int, int]:
        import torch
        import torch.distributed as torch_dist

        from dist_train.agent.workers.interpreter_exit import keep_process_groups

        torch_dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        before = sys.getrefcount(model.reducer)
        with_group = keep_process_groups()
        after = sys.getrefcount(model.reducer)
        assert after == before + 1
        torch_dist.destroy_process_group()
        return with_group, keep_process_groups()

    # The reducer, its logger, the group.
    assert run_ranks(rank, 2) == [(3, 2)] * 2
