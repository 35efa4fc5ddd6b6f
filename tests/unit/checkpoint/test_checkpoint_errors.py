"""Every flipped bit and every truncation is caught before use, named, and stepped over."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from checkpoint_cases import Training, manager, manifest_of, saved_run
from checkpoint_places import Place

from dist_train.checkpoint.format.blocks import BLOCK_BYTES
from dist_train.checkpoint.format.canonical_json import dump_canonical
from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint, UnsupportedCheckpoint
from dist_train.checkpoint.format.manifest import Manifest, parse_manifest
from dist_train.checkpoint.store.reader import read_checkpoint
from dist_train.checkpoint.store.verify import verify_checkpoint
from dist_train.errors import CheckpointError

FILES = ["manifest.json", "model.safetensors", "optim.safetensors", "ranks.safetensors", "state.json"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, str]]:
    directory = tmp_path_factory.mktemp("run")
    return directory, saved_run(directory, 2)


@pytest.mark.proves(
    "A flipped bit anywhere is caught, its file named, and the run falls back",
    limits="bits sampled; every bit of the manifest",
)
@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_anywhere_is_caught_and_its_file_named(place: Place, run, name: str) -> None:
    place.fill(run[0])
    key = f"step-00000002/{name}"
    size = len(place.read(key))
    for position in range(0, size, max(1, size // 150)):
        bit = position % 8
        place.flip(key, position, bit)
        with pytest.raises(DamagedCheckpoint) as caught:
            read_checkpoint(place.storage, "step-00000002")
        assert caught.value.file == name
        assert name == "manifest.json" or caught.value.block == 0
        place.flip(key, position, bit)
    read_checkpoint(place.storage, "step-00000002")


def test_every_bit_and_every_truncation_of_a_manifest(run) -> None:
    raw = (run[0] / "step-00000002" / "manifest.json").read_bytes()
    parse_manifest(raw)
    for length in range(len(raw)):
        with pytest.raises(DamagedCheckpoint):
            parse_manifest(raw[:length])
    for position in range(0, len(raw), 2):
        changed = bytearray(raw)
        changed[position] ^= 1 << (position // 2 % 8)
        with pytest.raises(DamagedCheckpoint):
            parse_manifest(bytes(changed))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", ["flip", "truncate", "remove", "grow"])
def test_the_run_falls_back_and_names_the_bad_file(
    place: Place, run, name: str, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    place.fill(run[0])
    key = f"step-00000002/{name}"
    raw = place.read(key)
    if harm == "flip":
        place.flip(key, len(raw) // 2, 3)
    elif harm == "remove":
        place.delete(key)
    else:
        place.write(key, raw[: len(raw) // 2] if harm == "truncate" else raw + b"\0")
    training = Training(seed=9)
    with caplog.at_level(logging.WARNING):
        restored = manager(place.location, attempt=1).load_latest(training.state)
    assert restored is not None
    assert restored.step == 1
    assert training.weights() == run[1][1]
    assert name in caplog.text
    assert place.storage.exists("quarantine/step-00000002-1")
    assert not place.storage.exists("step-00000002")


def test_an_unlisted_file_is_an_error(place: Place, run) -> None:
    place.fill(run[0])
    place.write("step-00000002/extra.bin", b"x")
    with pytest.raises(DamagedCheckpoint, match=r"extra\.bin is not listed"):
        read_checkpoint(place.storage, "step-00000002")
    report = verify_checkpoint(place.storage.locate("step-00000002"))
    assert report.problems == ("extra.bin is not listed in manifest.json",)


def test_a_checkpoint_under_another_steps_name_is_refused(place: Place, run) -> None:
    place.fill(run[0])
    place.copy("step-00000002", "step-00000009")
    with pytest.raises(DamagedCheckpoint, match="step-00000009 holds step 2"):
        read_checkpoint(place.storage, "step-00000009")


def test_all_damaged_is_an_error_that_names_each_and_stays_one(place: Place, run) -> None:
    place.fill(run[0])
    place.flip("step-00000001/model.safetensors", 600, 0)
    place.delete("step-00000002/manifest.json")
    for attempt in (1, 2):
        with pytest.raises(CheckpointError) as caught:
            manager(place.location, attempt=attempt).load_latest(Training().state)
        assert "step-00000002: there is no manifest.json" in str(caught.value)
        assert "step-00000001: model.safetensors: block 0" in str(caught.value)


def test_a_later_version_is_refused_and_no_older_one_taken(place: Place, run) -> None:
    place.fill(run[0])
    manifest = place.manifest(2).model_copy(update={"version": 2})
    place.write("step-00000002/manifest.json", _sealed(manifest))
    with pytest.raises(UnsupportedCheckpoint, match=r"version 2; this dist-train reads .* version 1"):
        manager(place.location, attempt=1).load_latest(Training().state)
    assert place.storage.exists("step-00000002")


def _sealed(manifest: Manifest) -> bytes:
    return dump_canonical(manifest.sealed().model_dump())


def test_a_manifest_cannot_lead_out_of_its_directory(run) -> None:
    manifest = manifest_of(run[0], 2)
    for name in ("../x", "/etc/passwd", "..", "a/b", ".hidden", "x\n"):
        bad = manifest.files[0].model_copy(update={"name": name})
        with pytest.raises(DamagedCheckpoint, match="not a version-1 manifest"):
            parse_manifest(_sealed(manifest.model_copy(update={"files": [bad]})))


def test_the_block_is_named_in_a_file_of_several(place: Place) -> None:
    import torch

    manager(place.location).save(1, {"big": torch.arange(BLOCK_BYTES, dtype=torch.float32)})
    key = "step-00000001/big.safetensors"
    place.flip(key, 2 * BLOCK_BYTES + 5, 0)
    with pytest.raises(DamagedCheckpoint, match=r"block 2 \(bytes 2097152 to 3145727\)") as caught:
        read_checkpoint(place.storage, "step-00000001")
    assert caught.value.block == 2
    place.flip(key, 2 * BLOCK_BYTES + 5, 0)
    place.flip(key, -1, 7)
    with pytest.raises(DamagedCheckpoint, match="block 4"):
        read_checkpoint(place.storage, "step-00000001")
