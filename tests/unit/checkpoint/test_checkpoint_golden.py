"""Checkpoints of versions 1 and 2 lie in the repository; every later version must open them."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from checkpoint_cases import manifest_of
from golden_checkpoints import HERE, STEP, Golden, golden_state, write_golden

from dist_train.checkpoint.format.hashing import weights_hash
from dist_train.checkpoint.manager import CheckpointManager
from dist_train.checkpoint.store.verify import list_checkpoints, verify_checkpoint
from dist_train.checkpoint.weights.convert import export_weights
from dist_train.checkpoint.weights.model_io import load_model


@dataclass(frozen=True)
class Version:
    """What was frozen with a fixture: the hashes that this version wrote for these values."""

    number: int
    weights_hash: str
    state_hash: str

    @property
    def directory(self) -> Path:
        return HERE / f"golden_v{self.number}"

    @property
    def path(self) -> Path:
        return self.directory / f"step-{STEP:08d}"


VERSIONS = (
    Version(1, "c0dd700839561ac61b076dde9fd04955", "cc2456846a29c5481bd8763143f7122e"),
    Version(2, "196370ec9902d57ba34b46eb034f1386", "7d316d3635b9928d0a801ae04b1b474f"),
)


@pytest.fixture(params=VERSIONS, ids=lambda version: f"v{version.number}")
def golden(request: pytest.FixtureRequest) -> Version:
    """Each version."""
    version: Version = request.param
    return version


def test_it_is_small_whole_and_unchanged(golden: Version) -> None:
    report = verify_checkpoint(golden.path)
    assert report.problems == ()
    assert report.bytes < 40_000
    manifest = report.manifest
    assert manifest is not None
    assert manifest.version == golden.number
    assert (manifest.weights_hash, manifest.state_hash) == (golden.weights_hash, golden.state_hash)


def test_every_value_is_read(golden: Version, tmp_path: Path) -> None:
    shutil.copytree(golden.path, tmp_path / golden.path.name)
    state, want = golden_state(filled=False), golden_state(filled=True)
    restored = CheckpointManager(tmp_path, run_id="golden", attempt=2).load_latest(state)
    assert restored is not None
    assert (restored.step, restored.epoch, restored.samples_in_epoch, restored.samples_total) == (7, 1, 8, 28)
    assert weights_hash(state["model"].state_dict(), golden.number) == golden.weights_hash
    assert torch.equal(state["model"].head.weight, want["model"].head.weight)
    assert state["notes"] == {"best": float("inf"), "pair": (1, "two"), "by": {3: None}}
    assert state["schedule"].state_dict() == want["schedule"].state_dict()
    moments = want["optimizer"].state[want["model"].gain]
    for key, value in state["optimizer"].state[state["model"].gain].items():
        assert value.dtype == moments[key].dtype
        assert torch.equal(value, moments[key])
    assert restored.rng_restored
    assert 0 <= random.random() < 1


def test_the_manifest_says_everything(golden: Version) -> None:
    manifest = manifest_of(golden.directory, STEP)
    assert manifest.aliases == {"model/head.weight": "model/emb.weight"}
    assert manifest.data["dataset_id"] == "golden"
    assert manifest.strategy == "ddp"
    assert (manifest.mesh, manifest.data_size) == ((("replicate", 1),), 1)
    assert [line.score for line in list_checkpoints(golden.directory)] == [0.25]


def test_plain_torch_opens_it_too(golden: Version, tmp_path: Path) -> None:
    model = Golden()
    load_model(golden.path, model)
    assert weights_hash(model.state_dict(), golden.number) == golden.weights_hash
    safetensors_torch = pytest.importorskip("safetensors.torch")
    plain = safetensors_torch.load_file(golden.path / "model.safetensors")
    assert set(plain) == {"emb.weight", "gain", "count"}
    export_weights(golden.path, tmp_path / "weights.safetensors")


def test_a_run_of_version_1_goes_on_in_version_2(tmp_path: Path) -> None:
    shutil.copytree(VERSIONS[0].path, tmp_path / VERSIONS[0].path.name)
    state = golden_state(filled=False)
    manager = CheckpointManager(tmp_path, run_id="golden", attempt=2)
    manager.load_latest(state)
    committed = manager.save(STEP + 1, state)
    assert committed.weights_hash == VERSIONS[1].weights_hash  # of the same weights
    assert [manifest_of(tmp_path, step).version for step in (STEP, STEP + 1)] == [1, 2]


def test_the_same_values_give_the_same_hashes_today(tmp_path: Path) -> None:
    torch.manual_seed(0)
    write_golden(tmp_path)
    assert manifest_of(tmp_path, STEP).weights_hash == VERSIONS[-1].weights_hash
