"""Scripts of accelerate, transformers, Lightning and ImageNet's form run under `launch` as under torchrun."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from conftest import nothing_left, wait_for

from dist_train.rundir import RunDir
from dist_train.rundir.records import read_json
from dist_train.testing.plugin import require

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.proof,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("other_trainers"),
]
ROOT = Path(__file__).resolve().parents[2]
PINS = ROOT / ".ci" / "other-trainers.txt"
SCRIPTS = Path(__file__).parent / "other_trainers"
# Script -> the arguments of its own.
IMAGENET = (
    "--dummy --dist-url env:// --dist-backend gloo --seed 1 -b 8 -j 1 --lr 0.01 --resume checkpoint.pth.tar"
)
ARGUMENTS = {
    "accelerate_loop.py": (),
    "transformers_trainer.py": (),
    "lightning_trainer.py": (),
    "imagenet_main.py": tuple(IMAGENET.split()),
}
# What a script has written once an epoch is saved.
SAVED = ("state", "trainer/checkpoint-4", "lightning/last.ckpt", "checkpoint.pth.tar")
DIST_TRAIN = ("-P", "-m", "dist_train.cli.main", "launch", "--name", "run", "--device", "cpu")
every_script = pytest.mark.parametrize("script", ARGUMENTS)


@dataclass(frozen=True)
class OtherTrainers:
    """A Python that imports them, torch and dist_train; torchvision is in a folder of its own.

    transformers and torchmetrics import torchvision wherever it is installed, and that fails where its
    operators do not load (other_trainers/operators_of_torchvision.py).
    """

    python: Path
    torchvision: Path

    def begin(self, folder: Path, words: Sequence[object]) -> subprocess.Popen[bytes]:
        """Start `python WORDS` in the folder, its output in out.txt."""
        folder.mkdir(exist_ok=True)
        paths = os.pathsep.join([str(SCRIPTS), *([str(self.torchvision)] if has_images(words) else [])])
        environ = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        with (folder / "out.txt").open("wb") as out:
            argv = [str(self.python), *map(str, words)]
            return subprocess.Popen(
                argv, cwd=folder, env=environ, stdout=out, stderr=out, start_new_session=True
            )

    def run(self, folder: Path, *words: object) -> tuple[int, str]:
        """Run it to its end; return exit code and output."""
        process = self.begin(folder, words)
        try:
            code = process.wait(timeout=120)
        finally:
            process.kill()
            process.wait()
        return code, (folder / "out.txt").read_text(errors="replace")


def has_images(words: Sequence[object]) -> bool:
    return any("imagenet_main.py" in str(word) for word in words)


@pytest.fixture(scope="session")
def other_trainers() -> OtherTrainers:
    """Install them once for each checkout and environment, into build/other-trainers."""
    folder = ROOT / "build" / "other-trainers"
    folder.mkdir(parents=True, exist_ok=True)
    venv, stamp = folder / "venv", folder / "stamp"
    wanted = f"{sys.prefix}\n{sys.version}\n{torch.__version__}\n{PINS.read_text()}"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != wanted:
            stamp.unlink(missing_ok=True)
            install(venv)
            stamp.write_text(wanted)
    return OtherTrainers(venv / "bin" / "python", venv / "torchvision")


def install(venv: Path) -> None:
    """Make the venv; torch and what else is pinned in constraints.txt come from this environment."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--clear", "--without-pip", str(venv)], check=True, timeout=60
    )
    (site,) = venv.glob("lib/python3*/site-packages")
    others = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    # A line of a .pth adds a folder without reading that folder's own .pth files, an editable install's.
    (site / "the-others.pth").write_text("\n".join([*others, str(ROOT)]) + "\n")
    pins = [line for line in PINS.read_text().splitlines() if line and not line.startswith("#")]
    images = [pin for pin in pins if pin.startswith("torchvision==")]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    quick = ["--quiet", "--no-deps", "--no-compile"]
    install_into(
        pip, ["--python", str(venv / "bin/python"), "install", *quick, *set(pins).difference(images)]
    )
    install_into(pip, ["install", *quick, "--target", str(venv / "torchvision"), *images])


def install_into(pip: Sequence[str], words: Sequence[str]) -> None:
    done = subprocess.run([*pip, *words], capture_output=True, text=True, timeout=240, check=False)
    if done.returncode != 0:
        require("other-trainers", f"pip could not install {PINS}:\n{done.stdout}{done.stderr}")


def same_weights(one: Path, other: Path) -> bool:
    ours, theirs = (torch.load(folder / "weights.pt") for folder in (one, other))
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.proves(
    "Scripts of accelerate, transformers' Trainer, Lightning and ImageNet's form train under `launch` as "
    "under torchrun, to the same bits, also after a kill -9 and their own resume",
    limits="W = 2, CPU; the releases of .ci/other-trainers.txt; Lightning: the script sets each epoch's "
    "order and seed",
)
@every_script
def test_it_trains_as_under_torchrun(other_trainers: OtherTrainers, tmp_path: Path, script: str) -> None:
    words = (SCRIPTS / script, *ARGUMENTS[script], "--epochs", 2, "--out", ".")
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", 2)
    code, output = other_trainers.run(tmp_path / "torchrun", *torchrun, *words)
    assert code == 0, output
    shapes = {
        "one_node": ("--gpus-per-node", 2),
        "two_nodes": ("--nodes", 2, "--gpus-per-node", 1),
        "killed": ("--gpus-per-node", 2),
    }
    for name, shape in shapes.items():
        fault = ("--fault", "kill") if name == "killed" else ()
        code, output = other_trainers.run(tmp_path / name, *DIST_TRAIN, *shape, *words, *fault)
        assert code == 0, output
        assert same_weights(tmp_path / "torchrun", tmp_path / name), f"{name}: {output}"
    attempts = sorted(path.name for path in (tmp_path / "killed/runs/run/attempts").iterdir())
    assert attempts == ["0", "1"], output


@pytest.mark.parametrize(
    ("script", "fault", "code"),
    [
        ("accelerate_loop.py", "exit", 3),
        ("transformers_trainer.py", "raise", 1),
        ("lightning_trainer.py", "raise", 1),
        ("imagenet_main.py", "exit", 3),
    ],
)
def test_a_failing_rank_gives_its_code_and_its_traceback(
    other_trainers: OtherTrainers, tmp_path: Path, script: str, fault: str, code: int
) -> None:
    words = (SCRIPTS / script, *ARGUMENTS[script], "--epochs", 2, "--out", ".", "--fault", fault)
    ended, output = other_trainers.run(tmp_path / "failed", *DIST_TRAIN, "--gpus-per-node", 2, *words)
    assert ended == code, output
    report = output[output.index("FAILED: ") :]
    reason = "ValueError: the user's own mistake" if fault == "raise" else "exited with code 3"
    assert report.startswith("FAILED: rank 1 (node 0, local rank 1)"), output
    assert report.splitlines()[0].endswith(reason), output
    record = read_json(tmp_path / "failed/runs/run/failure.json")
    assert record is not None
    assert (record["exit_code"], record["restarted"]) == (code, False)
    if fault == "raise":
        assert 'raise ValueError("the user\'s own mistake")' in str(record["traceback"])
        assert str(record["file"]).endswith(script)


@every_script
def test_ctrl_c_stops_it(other_trainers: OtherTrainers, tmp_path: Path, script: str) -> None:
    words = (SCRIPTS / script, *ARGUMENTS[script], "--epochs", 100_000, "--out", ".")
    folder = tmp_path / "stopped"
    command = other_trainers.begin(folder, (*DIST_TRAIN, "--gpus-per-node", 2, *words))
    try:
        wait_for(lambda: any((folder / name).exists() for name in SAVED), "an epoch of training")
        began = time.monotonic()
        command.send_signal(signal.SIGINT)
        assert command.wait(timeout=40) == 130, (folder / "out.txt").read_text()
        assert time.monotonic() - began < 25, "it was killed when the grace of 30 s had passed"
    finally:
        command.kill()
        command.wait()
    job = read_json(RunDir(folder / "runs/run").job)
    assert job is not None
    assert nothing_left(job["spec"]["run_id"])
