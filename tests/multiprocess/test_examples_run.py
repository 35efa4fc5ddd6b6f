"""Every example, started as its users start it."""

from __future__ import annotations

import gzip
import os
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import Finished, begin, nothing_left, start, wait_for
from safetensors.torch import load_file
from warm_commands.warm_launch import launch_cli

from dist_train.checkpoint.format.hashing import weights_hash
from dist_train.datasets.digits import Digits
from dist_train.datasets.idx import FASHION_MNIST
from dist_train.rundir import RunDir
from dist_train.rundir.committed_steps import newest_step
from dist_train.testing.plugin import require

pytestmark = [pytest.mark.multiprocess, pytest.mark.proof]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TUTORIALS = sorted(path.name for path in (EXAMPLES / "from_tutorials").glob("*.py"))
ON_TWO_PROCESSES = ("data_parallel.py", "distributed_data_parallel.py", "old_launch.py")


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """The UCI digits, scaled by three, in MNIST's file format."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    for prefix, split in (("train", "train"), ("t10k", "evaluation")):
        digits = Digits(split)  # type: ignore[arg-type]
        images = (digits.images[:, 0].numpy() * 255).astype(np.uint8).repeat(3, 1).repeat(3, 2)
        images = np.pad(images, ((0, 0), (2, 2), (2, 2)))
        labels = digits.labels.numpy().astype(np.uint8)
        for name, values in (("images-idx3", images), ("labels-idx1", labels)):
            header = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
            (folder / f"{prefix}-{name}-ubyte.gz").write_bytes(gzip.compress(header + values.tobytes()))
    return folder


def test_fashion_mnist_on_files_of_mnist_s_names(tmp_path: Path, mnist: Path) -> None:
    words = [f"data.{part}.args.folder={mnist}" for part in ("train", "evaluation")]
    words += ["trainer.epochs=4", "data.batch_size=32"]
    done = start(tmp_path, "idx", "--gpus-per-node", 2, EXAMPLES / "fashion_mnist.yaml", *words)
    assert done.cli.code == 0, done.cli
    assert done.result.metrics["accuracy"] > 0.9, done.cli


def test_fashion_mnist_on_debian_s_package(tmp_path: Path) -> None:
    if not Path(FASHION_MNIST).is_dir():
        require("fashion-mnist", f"no {FASHION_MNIST} (apt-get install dataset-fashion-mnist)")
    words = ("data.train.args.limit=3000", "data.evaluation.args.limit=500", "trainer.epochs=1")
    done = start(tmp_path, "clothes", "--gpus-per-node", 2, EXAMPLES / "fashion_mnist.yaml", *words)
    assert done.cli.code == 0, done.cli
    assert done.result.metrics["accuracy"] > 0.4, (
        "far from the 0.9 of five epochs, and from the 0.1 of guessing"
    )


def test_fashion_mnist_without_its_files_names_the_command_to_install_them(tmp_path: Path) -> None:
    words = [f"data.{part}.args.folder={tmp_path}/none" for part in ("train", "evaluation")]
    done = start(tmp_path, "none", EXAMPLES / "fashion_mnist.yaml", *words)
    assert done.cli.code == 66, done.cli
    assert "sudo apt-get install dataset-fashion-mnist" in done.cli.stderr


def test_the_language_model_trains_on_pythons_help_texts(tmp_path: Path) -> None:
    words = ("data.train.args.stride=512", "trainer.epochs=3")
    done = start(tmp_path, "language", "--gpus-per-node", 2, EXAMPLES / "language_model.yaml", *words)
    assert done.cli.code == 0, done.cli
    assert done.result.metrics["loss"] < 3.0, "5.55 is guessing"


def test_the_imagenet_script_under_launch_explains_superfluous_flags(tmp_path: Path) -> None:
    words = "--dummy -a resnet10 --width 4 --image-size 16 --limit 64 -b 16 --epochs 1 --world-size 2 --gpu 1"
    done = start(tmp_path, "imagenet", "--nodes", 2, EXAMPLES / "imagenet_style.py", *words.split())
    assert done.cli.code == 0, done.cli
    assert "--gpu 1 is superfluous: each process has its own" in done.cli.stdout
    assert re.search(r"^ \* Acc@1 [\d.]+ Acc@5 [\d.]+ over 12 images$", done.cli.stdout, re.MULTILINE)


@pytest.mark.parametrize("name", [name for name in TUTORIALS if name not in ON_TWO_PROCESSES])
def test_a_tutorial_shows_both_forms(tmp_path: Path, name: str) -> None:
    argv = [sys.executable, str(EXAMPLES / "from_tutorials" / name)]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_both(done.stdout)
    assert not list(tmp_path.iterdir()), "an example leaves nothing in the folder where it is tried"


def assert_both(output: str) -> None:
    """Check that the output has the tutorial's form, then ours, and that they differ."""
    forms = {
        form: re.findall(rf"^.*\b{form}:? *(.*)$", output, re.MULTILINE) for form in ("tutorial", "ours")
    }
    assert forms["tutorial"], output
    assert forms["ours"], output
    assert forms["tutorial"] != forms["ours"], output


@pytest.mark.parametrize("name", ON_TWO_PROCESSES[:2])
def test_a_tutorial_of_two_processes(tmp_path: Path, name: str) -> None:
    done = start(tmp_path, "two", "--gpus-per-node", 2, EXAMPLES / "from_tutorials" / name)
    assert done.cli.code == 0, done.cli
    assert_both(done.cli.stdout)


def test_an_old_script_gets_its_local_rank(tmp_path: Path) -> None:
    script = EXAMPLES / "from_tutorials" / "old_launch.py"
    shape = ("--nodes", 2, "--gpus-per-node", 2, "--show-ranks", "all")
    done = start(tmp_path, "old", *shape, script)
    assert done.cli.code == 0, done.cli
    for local in (0, 1):
        assert f"I am {local}; tutorial: {local}, ours: {local}" in done.cli.stdout
    assert "old_launch.py takes --local_rank: each rank gets its own" in done.cli.stderr
    without = start(tmp_path, "without", "--legacy-local-rank", "none", *shape, script)
    assert "I am 1; tutorial: 0, ours: 1" in without.cli.stdout
    resumed_as = without.job["spec"]["local_rank_flag"], done.job["spec"]["local_rank_flag"]
    assert resumed_as == ("", "--local_rank")


@pytest.mark.proves(
    "A plain script has status, save-and-stop and resume",
)
def test_a_plain_script_is_monitored_preempted_and_resumed(tmp_path: Path) -> None:
    folder = EXAMPLES / "bring_your_own_script"
    (tmp_path / "spirals.py").write_bytes((folder / "spirals.py").read_bytes())
    slow = tmp_path / "watched.py"
    # The first attempt takes 24 s, and is stopped after 5 s.
    wait = "        __import__('time').sleep(0.2 * (dt.init().attempt == 0))\n"
    text = (folder / "watched.py").read_text()
    slow.write_text(text.replace("        optimizer.step()\n", f"        optimizer.step()\n{wait}"))
    assert wait in slow.read_text()
    base = start(tmp_path, "base", "--gpus-per-node", 2, folder / "after.py")
    assert base.cli.code == 0, base.cli
    undisturbed = weights(tmp_path)
    (tmp_path / "spirals.safetensors").unlink()

    run = RunDir(tmp_path / "runs" / "stopped")
    command = begin(tmp_path, "stopped", "--gpus-per-node", 2, slow)
    try:
        wait_for(lambda: run.metrics.exists() and run.metrics.read_text().count("\n") > 25, "25 steps")
        status = launch_cli(["status", "stopped"], cwd=tmp_path, timeout_s=30)
        assert re.search(r"^phase +running$", status.stdout, re.MULTILINE), status
        assert re.search(r"^train +step \d+, epoch \d+, loss \d", status.stdout, re.MULTILINE), status
        assert re.search(r"^checkpoint +step \d+, ", status.stdout, re.MULTILINE), status
        os.kill(command.pid, signal.SIGINT)
        assert command.wait(timeout=30) == 130, (tmp_path / "out.txt").read_text()
    finally:
        command.kill()
        command.wait()
    stopped = Finished(None, run)  # type: ignore[arg-type]
    saved = newest_step(run)
    assert saved is not None
    assert 25 < saved < 120
    assert [event["step"] for event in stopped.events("preempted")] == [saved]
    assert nothing_left(stopped.run_id)
    resumed = launch_cli(["resume", "stopped"], cwd=tmp_path, timeout_s=90)
    assert resumed.code == 0, resumed
    assert f"goes on from step {saved}" in resumed.stderr
    assert weights(tmp_path) == undisturbed


def weights(folder: Path) -> str:
    return weights_hash(load_file(folder / "spirals.safetensors"))
