"""Several ranks train as one process does: losses, uneven shares, evaluation, stop and resume."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors import safe_open
from warm_commands.warm_launch import BackgroundCommand, start_module

from dist_train.env import INJECT, WorkerEnv
from dist_train.rundir.directory import RunDir
from dist_train.rundir.metrics_file import read_metrics
from dist_train.rundir.result import Result, read_result
from dist_train.rundir.stop_file import StopFile

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]

DEADLINE_S = 90.0

# The user's own module: float64 throughout, so that only a wrong weight can be seen.
MODULE = '''
import os
import torch
from torch import nn
from dist_train.trainer.task import SupervisedTask


class Waves(torch.utils.data.Dataset):
    """Sixteen inputs, three classes, in float64."""

    def __init__(self, samples, noise=False):
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(samples, 16, dtype=torch.float64, generator=generator)
        self.y = (self.x[:, :3] + self.x[:, 3:6].cos()).argmax(1)
        self.noise = noise

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        noise = 0.1 * torch.randn(16, dtype=torch.float64) if self.noise else 0.0
        return self.x[index] + noise, self.y[index]


def net(dropout=0.0, norm=False):
    middle = [nn.BatchNorm1d(24)] if norm else []
    layers = [nn.Linear(16, 24), *middle, nn.Tanh(), nn.Dropout(dropout), nn.Linear(24, 3)]
    return nn.Sequential(*layers).double()


class StopsItself(SupervisedTask):
    """Sets the stop flag while it computes its n-th loss."""

    def __init__(self):
        super().__init__(nn.functional.cross_entropy)
        self.left = int(os.environ.get("WAVES_STOP_AT", "0"))

    def loss(self, model, batch):
        self.left -= 1
        if self.left == 0:
            with open(os.environ["DIST_TRAIN_STOP_FILE"], "r+b") as file:
                file.write(b"\\x01")
        return super().loss(model, batch)


class Padded:
    """Counts only the samples of class 0 and 1 as units: they differ from share to share."""

    units_vary = True

    def units(self, batch):
        return int((batch[1] < 2).sum())

    def loss(self, model, batch):
        from dist_train.trainer.task import LossOutput

        ignored = {"reduction": "sum", "ignore_index": 2}
        return LossOutput(nn.functional.cross_entropy(model(batch[0]), batch[1], **ignored))
'''

CONFIG = """
model: {target: "waves:net"}
data:
  train: {target: "waves:Waves", args: {samples: 160}}
  batch_size: 16
loss: torch.nn.functional:cross_entropy
optimizer: {target: "torch.optim:SGD", args: {lr: 0.2, momentum: 0.9}}
schedule: dist_train.trainer.schedules:cosine
trainer: {steps: 100, log_every_steps: 1}
checkpoint: {every_epochs: 100}
"""


@dataclass
class Job:
    """One run's folder, started any number of times with any number of ranks."""

    folder: Path

    def start(
        self,
        nodes: int,
        per_node: int,
        changes: Sequence[str] = (),
        attempt: int = 0,
        without: str = "",
        extra: Mapping[str, str] | None = None,
    ) -> list[int]:
        """Every rank's exit code."""
        run_dir = RunDir(self.folder / "run")
        run_dir.create()
        (self.folder / "waves.py").write_text(MODULE)
        config = self.folder / "run.yaml"
        config.write_text(_config(changes, without))
        for node in range(nodes):
            StopFile.create(self.folder / f"board-{node}", per_node).close()
        ranks = [(node, local) for node in range(nodes) for local in range(per_node)]
        children = [
            self._spawn(rank, node, local, nodes, per_node, attempt, extra or {})
            for rank, (node, local) in enumerate(ranks)
        ]
        try:
            return [child.wait(DEADLINE_S) for child in children]
        except subprocess.TimeoutExpired:
            for child in children:
                child.send_signal(signal.SIGABRT)  # faulthandler writes every thread's stack
            time.sleep(1.0)
            pytest.fail(f"not done within {DEADLINE_S:.0f} s\n{self.said}")
        finally:
            for child in children:
                child.kill()
                child.wait()

    def _spawn(
        self,
        rank: int,
        node: int,
        local: int,
        nodes: int,
        per_node: int,
        attempt: int,
        extra: Mapping[str, str],
    ) -> BackgroundCommand:
        worker = WorkerEnv(
            "test",
            self.folder / "run",
            attempt,
            node,
            nodes,
            stop_file=self.folder / f"board-{node}",
            device="cpu",
            init_method=f"file://{self.folder}/meet-{attempt}",
            threads_per_rank=1,
        )
        facts = {
            "RANK": rank,
            "LOCAL_RANK": local,
            "WORLD_SIZE": nodes * per_node,
            "LOCAL_WORLD_SIZE": per_node,
            "GROUP_RANK": node,
            "GROUP_WORLD_SIZE": nodes,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": 1,
        }
        words = ["dist_train.entrypoint", str(self.folder / "run.yaml"), "--folder", str(self.folder)]
        environ = {
            **os.environ,
            **worker.to_environ(),
            **{name: str(value) for name, value in facts.items()},
            **extra,
        }
        with (self.folder / f"rank-{rank}.{attempt}.log").open("wb") as log:
            return start_module(words, self.folder, environ, log)

    @property
    def said(self) -> str:
        """What the ranks wrote, attempt after attempt."""
        logs = sorted(self.folder.glob("rank-*.log"), key=lambda path: path.suffixes[-2])
        return "\n".join(f"[{path.stem}]\n{path.read_text()}" for path in logs)

    @property
    def result(self) -> Result:
        """Of a run that ended well."""
        result = read_result(RunDir(self.folder / "run"))
        assert result is not None, self.said
        return result

    def losses(self, kind: str = "train") -> list[float]:
        """One per step."""
        return [r["loss"] for r in read_metrics(RunDir(self.folder / "run").metrics) if r["kind"] == kind]


def _config(changes: Sequence[str], without: str) -> str:
    from dist_train.config.dump import dump_config
    from dist_train.config.load import load_text

    text = "\n".join(line for line in CONFIG.splitlines() if not (without and line.startswith(without)))
    return dump_config(load_text(textwrap.dedent(text), "run.yaml", changes).config)


def run_job(folder: Path, nodes: int, per_node: int, *changes: str, without: str = "") -> Job:
    """A run that must end well."""
    folder.mkdir()
    job = Job(folder)
    codes = job.start(nodes, per_node, changes, without=without)
    assert codes == [0] * (nodes * per_node), job.said
    return job


@pytest.mark.proves(
    "The loss of each of 100 steps is the same with one process and with 2 nodes x 2 ranks, within 1e-5",
    limits="float64",
)
@pytest.mark.slow
def test_two_nodes_of_two_lose_what_one_process_loses(tmp_path: Path) -> None:
    one = run_job(tmp_path / "one", 1, 1)
    four = run_job(tmp_path / "four", 2, 2)
    assert len(one.losses()) == 100
    assert four.losses() == pytest.approx(one.losses(), abs=1e-5, rel=0)
    assert "batch 16 = 4 ranks x 4 x 1, ddp on cpu (gloo), seed 0" in four.said
    assert one.losses()[-1] < 0.5 * one.losses()[0]


# 13 samples in steps of 5: the last step has 3, so that with 3 ranks and 2 micro-batches some are empty.
UNEVEN = (
    "data.train.args.samples=13",
    "data.evaluation={target: 'waves:Waves', args: {samples: 7}}",
    "data.batch_size=5",
    "trainer={epochs: 8, log_every_steps: 1, clip_norm: 0.05, accumulate: 2, evaluate_every_epochs: 2}",
    "metrics=[dist_train.trainer.metrics:accuracy]",
)


@pytest.mark.proves(
    "Uneven and empty micro-batches, accumulation, clipping and evaluation give what one process gives",
    limits="float64, 1e-10",
)
@pytest.mark.slow
def test_uneven_and_empty_shares_accumulated_and_clipped_match_one_process(tmp_path: Path) -> None:
    one = run_job(tmp_path / "one", 1, 1, *UNEVEN)
    for ranks in (2, 3):
        several = run_job(tmp_path / str(ranks), 1, ranks, *UNEVEN)
        assert several.losses() == pytest.approx(one.losses(), rel=1e-10)
        assert several.losses("eval") == pytest.approx(one.losses("eval"), rel=1e-10)
        assert several.result.metrics == pytest.approx(one.result.metrics, rel=1e-10)
        assert several.result.samples == one.result.samples == 8 * 13
    assert len(one.losses()) == 24
    assert len(one.losses("eval")) == 4


@pytest.mark.proof
def test_units_that_vary_are_divided_by_the_sum_of_all_ranks(tmp_path: Path) -> None:
    changes = ("task=waves:Padded", "trainer.steps=20", "data.batch_size=7")
    one = run_job(tmp_path / "one", 1, 1, *changes, without="loss:")
    three = run_job(tmp_path / "three", 1, 3, *changes, without="loss:")
    assert three.losses() == pytest.approx(one.losses(), rel=1e-10)


NOISY = (
    "task=waves:StopsItself",
    "model.args={dropout: 0.3, norm: true}",
    "data.train.args={samples: 56, noise: true}",
    "data.evaluation={target: 'waves:Waves', args: {samples: 7}}",
    "data.workers=1",
    "trainer={epochs: 3, log_every_steps: 2, evaluate_every_epochs: 1}",
    "checkpoint={every_steps: 3}",
)


def rng_state(checkpoint: Path, ranks: int) -> list[bytes]:
    """torch's generator of each rank, as saved."""
    found: dict[str, bytes] = {}
    for path in checkpoint.glob("*.safetensors"):
        with safe_open(path, framework="np") as file:
            found |= {key: file.get_tensor(key).tobytes() for key in file.keys() if "/rng/torch" in key}  # noqa: SIM118
    return [found[f"data{rank}/rng/torch"] for rank in range(ranks)]


@pytest.mark.proof
def test_stopped_and_killed_and_resumed_gives_the_same_bits_on_three_ranks(tmp_path: Path) -> None:
    """Three: with two ranks every order of summation gives the same bits."""
    quiet = run_job(tmp_path / "quiet", 1, 3, *NOISY, without="loss:")
    (tmp_path / "loud").mkdir()
    job = Job(tmp_path / "loud")
    # The throw-away step is the first loss, step 2 the third: rank 2 asks there, all stop there.
    codes = job.start(1, 3, NOISY, without="loss:", extra={"WAVES_STOP_AT": "3"})
    assert codes == [75] * 3, job.said
    assert "stopped at step 2 as asked, and saved" in job.said
    saved = RunDir(job.folder / "run").checkpoints / "step-00000002"
    assert len(set(rng_state(saved, 3))) == 3  # each rank drops out its own
    # Killed after step 8, before it is saved; step 6 is.
    codes = job.start(1, 3, NOISY, attempt=1, without="loss:", extra={INJECT: "kill:rank=1,step=8"})
    assert codes[1] == -9, job.said
    assert all(code != 0 for code in codes), job.said
    codes = job.start(1, 3, NOISY, attempt=2, without="loss:")
    assert codes == [0] * 3, job.said
    assert "resumed from step 2 (epoch 1, sample 32)" in job.said
    assert "resumed from step 6 (epoch 2, sample 32)" in job.said
    assert job.result.attempts == 3
    for name in ("weights_hash", "state_hash", "metrics_hash", "metrics", "samples"):
        assert getattr(job.result, name) == getattr(quiet.result, name), f"{name}\n{job.said}"
