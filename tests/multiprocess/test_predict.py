"""`predict`, `checkpoint export|import` and dt.Predictor with real commands and spawned workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from warm_commands.warm_launch import launch_cli

import dist_train as dt
from dist_train.checkpoint.format.tensor_file import TensorFile
from dist_train.checkpoint.manager import CheckpointManager
from dist_train.config import dump_config, load_config
from dist_train.datasets.digits import Digits
from dist_train.models.convnet import ConvNet
from dist_train.testing.process_tree import descendants, is_alive

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(120)]

DIGITS = Path(__file__).parents[2] / "examples" / "digits.yaml"

SCRIPT = """
import sys
import torch
import dist_train as dt

class Net(torch.nn.Module):
    def forward(self, x):
        return x + 1

def main():
    with dt.Predictor(Net(), devices=["cpu", "cpu"]) as predictor:
        print([int(y) for y in predictor.predict(torch.full((1,), float(i)) for i in range(8))], flush=True)
        if "--wait" in sys.argv:
            sys.stdin.read()

"""


@pytest.fixture
def model() -> ConvNet:
    torch.manual_seed(5)
    return ConvNet(width=32, dropout=0.2).eval()


@pytest.fixture
def saved(tmp_path: Path, model: ConvNet) -> Path:
    """A checkpoint of `model`, with its config."""
    (tmp_path / "train.yaml").write_text(dump_config(load_config(DIGITS).config))
    return CheckpointManager(tmp_path / "kept", run_id="r", attempt=0).save(7, {"model": model}).path


def expected(model: ConvNet) -> np.ndarray:
    with torch.inference_mode():
        return torch.cat([model(part) for part in Digits("evaluation").images.split(64)]).numpy()


def script(folder: Path, guard: str, *words: str) -> subprocess.Popen[str]:
    (folder / "predicts.py").write_text(SCRIPT + guard)
    return subprocess.Popen(
        [sys.executable, str(folder / "predicts.py"), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def gone(processes: list[psutil.Process], within_s: float = 30.0) -> bool:
    deadline = time.monotonic() + within_s
    while any(map(is_alive, processes)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def wait_for(ready: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.proof
@pytest.mark.proves(
    "`predict` says what the model says, in order; a killed worker loses nothing",
    limits="CPU processes",
)
def test_two_processes_predict_what_the_model_predicts(tmp_path: Path, saved: Path, model: ConvNet) -> None:
    words = ["predict", saved, "--config", "train.yaml", "--processes", "2", "--output", "out/p.npy"]
    done = launch_cli(list(map(str, words)), cwd=tmp_path, timeout_s=60)
    assert done.code == 0, done.stderr
    assert np.array_equal(np.load(tmp_path / "out" / "p.npy"), expected(model))
    assert "359 samples of data.evaluation" in done.stderr
    assert "on cpu, cpu" in done.stderr


@pytest.mark.proof
def test_export_to_plain_torch_and_import(tmp_path: Path, saved: Path, model: ConvNet) -> None:
    def command(*words: object) -> str:
        done = launch_cli(["checkpoint", *map(str, words)], cwd=tmp_path, timeout_s=60)
        assert done.code == 0, done.stderr
        return done.stdout

    assert "read back and equal" in command("export", saved, "--out", "m.pt")
    plain = ConvNet(width=32, dropout=0.2)
    plain.load_state_dict(torch.load(tmp_path / "m.pt", weights_only=True))
    wrapped = {f"module.{name}": tensor for name, tensor in plain.state_dict().items()}
    torch.save({"state_dict": wrapped, "epoch": 3}, tmp_path / "theirs.pth.tar")
    output = command("import", "theirs.pth.tar")
    assert "dropped leading 'module.' from 8 names" in output
    assert "not used: epoch" in output
    fresh = ConvNet(width=32, dropout=0.2)
    dt.checkpoint.load_model(tmp_path / "theirs.safetensors", fresh)
    assert all(torch.equal(a, b) for a, b in zip(fresh.parameters(), model.parameters(), strict=True))
    again = launch_cli(["checkpoint", "export", str(saved), "--out", "m.pt"], cwd=tmp_path, timeout_s=60)
    assert (again.code, "exists already" in again.stderr) == (78, True)


@pytest.mark.proof
def test_a_script_with_a_spawned_predictor(tmp_path: Path) -> None:
    process = script(tmp_path, 'if __name__ == "__main__":\n    main()\n')
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "[1, 2, 3, 4, 5, 6, 7, 8]\n"), err


@pytest.mark.proof
def test_a_script_without_the_main_guard_fails_with_a_hint(tmp_path: Path) -> None:
    process = script(tmp_path, "main()\n")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert 'below `if __name__ == "__main__":`' in err


@pytest.mark.proof
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_their_parent(tmp_path: Path, number: signal.Signals) -> None:
    process = script(tmp_path, 'if __name__ == "__main__":\n    main()\n', "--wait")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "[1, 2, 3, 4, 5, 6, 7, 8]\n"
        workers = descendants(process.pid)
        assert len(workers) >= 2
        process.send_signal(number)
        process.wait(30)
        assert gone(workers)
    finally:
        process.kill()
        process.communicate()


SLOW = """
import time
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        time.sleep(0.1)
        return x * 2
"""


def slow_prediction(folder: Path) -> subprocess.Popen[bytes]:
    """`predict` of 100 samples, one per batch, with two processes: 5 s."""
    (folder / "slow_net.py").write_text(SLOW)
    config = load_config(DIGITS, ["model.target=slow_net:Net", "model.args={}"]).config
    (folder / "slow.yaml").write_text(dump_config(config))
    np.save(folder / "x.npy", np.arange(100, dtype=np.float32))
    words = ["predict", "w.safetensors", "--config", "slow.yaml", "--input", "x.npy", "--batch-size", "1"]
    words += ["--processes", "2", "--output", "p.npy"]
    with (folder / "w.safetensors").open("wb") as file:
        TensorFile({}, {}).write(lambda piece: file.write(piece) and None)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "dist_train.cli.main", *words],
        cwd=folder,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def workers_of(pid: int) -> list[psutil.Process]:
    return [p for p in descendants(pid) if "spawn_main" in _command_of(p)]


def _command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has ended since it was listed
        return ""


SWALLOWS = """
import os, time
open(os.environ["MARK"], "w").close()
try:
    time.sleep(60)
except BaseException:
    pass  # as torch's import sometimes does
"""


def test_ctrl_c_during_the_import_of_torch_is_not_swallowed(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(SWALLOWS)
    command = subprocess.Popen(
        [sys.executable, "-P", "-m", "dist_train.inference", "--config", "c.yaml", "--weights", "w.pt"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "MARK": str(tmp_path / "mark")},
        stderr=subprocess.PIPE,
    )
    try:
        wait_for((tmp_path / "mark").exists)
        command.send_signal(signal.SIGINT)
        _, err = command.communicate(timeout=30)
    finally:
        command.kill()
    assert (command.returncode, err) == (130, b"")


@pytest.mark.proves(
    "`predict` says what the model says, in order; a killed worker loses nothing",
    limits="CPU processes",
)
@pytest.mark.proof
def test_a_killed_worker_of_the_command_loses_nothing(tmp_path: Path) -> None:
    command = slow_prediction(tmp_path)
    try:
        wait_for(lambda: len(workers_of(command.pid)) == 2)
        wait_for(lambda: bool(list(tmp_path.glob(".p.npy.*"))))
        time.sleep(0.5)
        workers_of(command.pid)[0].kill()
        _, err = command.communicate(timeout=60)
    finally:
        command.kill()
    assert command.returncode == 0, err.decode()
    assert b"was ended by signal 9 (SIGKILL)" in err
    assert np.load(tmp_path / "p.npy").tolist() == [2.0 * n for n in range(100)]


@pytest.mark.proof
@pytest.mark.parametrize("end", ["Ctrl-C", "kill -9"])
def test_a_stopped_command_leaves_no_file_and_no_process(tmp_path: Path, end: str) -> None:
    command = slow_prediction(tmp_path)
    try:
        wait_for(lambda: len(workers_of(command.pid)) == 2)
        wait_for(lambda: bool(list(tmp_path.glob(".p.npy.*"))))
        left = descendants(command.pid)
        if end == "Ctrl-C":
            os.killpg(command.pid, signal.SIGINT)
        else:
            command.kill()
        command.communicate(timeout=30)
        assert command.returncode == (130 if end == "Ctrl-C" else -9)
        assert gone(left)
        deadline = time.monotonic() + 30
        while there := [path.name for path in tmp_path.glob("*p.npy*")]:
            assert time.monotonic() < deadline, there
            time.sleep(0.05)
    finally:
        command.kill()
