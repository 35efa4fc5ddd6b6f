"""A checkpoint of version 1 lies in the repository; every later version must open it."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import torch
from checkpoint_cases import manifest_of
from make_golden_v1 import DIRECTORY, STEP, Golden, golden_state

from dist_train.checkpoint.format.hashing import weights_hash
from dist_train.checkpoint.manager import CheckpointManager
from dist_train.checkpoint.store.verify import list_checkpoints, verify_checkpoint
from dist_train.checkpoint.weights.model_io import load_model

PATH = DIRECTORY / f"step-{STEP:08d}"
# Frozen with the fixture: what version 1 wrote for these values.
WEIGHTS_HASH = "c0dd700839561ac61b076dde9fd04955"
STATE_HASH = "cc2456846a29c5481bd8763143f7122e"


def test_it_is_small_whole_and_unchanged() -> None:
    report = verify_checkpoint(PATH)
    assert report.problems == ()
    assert report.bytes < 40_000
    assert report.manifest is not None
    assert (report.manifest.weights_hash, report.manifest.state_hash) == (WEIGHTS_HASH, STATE_HASH)


def test_every_value_is_read(tmp_path: Path) -> None:
    shutil.copytree(PATH, tmp_path / PATH.name)
    state, want = golden_state(filled=False), golden_state(filled=True)
    restored = CheckpointManager(tmp_path, run_id="golden", attempt=2).load_latest(state)
    assert restored is not None
    assert (restored.step, restored.epoch, restored.samples_in_epoch, restored.samples_total) == (7, 1, 8, 28)
    assert weights_hash(state["model"].state_dict()) == WEIGHTS_HASH
    assert torch.equal(state["model"].head.weight, want["model"].head.weight)
    assert state["notes"] == {"best": float("inf"), "pair": (1, "two"), "by": {3: None}}
    assert state["schedule"].state_dict() == want["schedule"].state_dict()
    moments = want["optimizer"].state[want["model"].gain]
    for key, value in state["optimizer"].state[state["model"].gain].items():
        assert value.dtype == moments[key].dtype
        assert torch.equal(value, moments[key])
    assert restored.rng_restored
    assert 0 <= random.random() < 1


def test_the_manifest_says_everything() -> None:
    manifest = manifest_of(DIRECTORY, STEP)
    assert manifest.aliases == {"model/head.weight": "model/emb.weight"}
    assert manifest.data["dataset_id"] == "golden"
    assert manifest.strategy == "ddp"
    assert [line.score for line in list_checkpoints(DIRECTORY)] == [0.25]


def test_plain_torch_opens_it_too() -> None:
    model = Golden()
    load_model(PATH, model)
    assert weights_hash(model.state_dict()) == WEIGHTS_HASH
    safetensors_torch = pytest.importorskip("safetensors.torch")
    plain = safetensors_torch.load_file(PATH / "model.safetensors")
    assert set(plain) == {"emb.weight", "gain", "count"}
