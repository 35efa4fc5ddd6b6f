"""Every flipped bit and every truncation is caught before use, named, and stepped over."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
from checkpoint_cases import Training, manager, saved_run

from dist_train.checkpoint.blocks import BLOCK_BYTES
from dist_train.checkpoint.canonical import dump_canonical
from dist_train.checkpoint.damage import Damaged, Unsupported
from dist_train.checkpoint.manifest import Manifest, parse_manifest, read_manifest
from dist_train.checkpoint.reader import read_checkpoint
from dist_train.checkpoint.verify import verify_checkpoint
from dist_train.errors import CheckpointError

FILES = ["manifest.json", "model.safetensors", "optim.safetensors", "ranks.safetensors", "state.json"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, str]]:
    directory = tmp_path_factory.mktemp("run")
    return directory, saved_run(directory, 2)


def flip(path: Path, position: int, bit: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ (1 << bit)]))


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_anywhere_is_caught_and_its_file_named(tmp_path: Path, run, name: str) -> None:
    whole = tmp_path / "step-00000002"
    shutil.copytree(run[0] / "step-00000002", whole)
    size = (whole / name).stat().st_size
    for position in range(0, size, max(1, size // 150)):
        bit = position % 8
        flip(whole / name, position, bit)
        with pytest.raises(Damaged) as caught:
            read_checkpoint(whole)
        assert caught.value.file == name
        assert name == "manifest.json" or caught.value.block == 0
        flip(whole / name, position, bit)
    read_checkpoint(whole)


def test_every_bit_and_every_truncation_of_a_manifest(run) -> None:
    raw = (run[0] / "step-00000002" / "manifest.json").read_bytes()
    parse_manifest(raw)
    for length in range(len(raw)):
        with pytest.raises(Damaged):
            parse_manifest(raw[:length])
    for position in range(0, len(raw), 2):
        changed = bytearray(raw)
        changed[position] ^= 1 << (position // 2 % 8)
        with pytest.raises(Damaged):
            parse_manifest(bytes(changed))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", ["flip", "truncate", "remove", "grow"])
def test_the_run_falls_back_and_names_the_bad_file(
    tmp_path: Path, run, name: str, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(run[0], directory)
    file = directory / "step-00000002" / name
    raw = file.read_bytes()
    if harm == "flip":
        flip(file, len(raw) // 2, 3)
    elif harm == "remove":
        file.unlink()
    else:
        file.write_bytes(raw[: len(raw) // 2] if harm == "truncate" else raw + b"\0")
    training = Training(seed=9)
    with caplog.at_level(logging.WARNING):
        restored = manager(directory, attempt=1).load_latest(training.state)
    assert restored is not None
    assert restored.step == 1
    assert training.weights() == run[1][1]
    assert name in caplog.text
    assert (directory / "quarantine" / "step-00000002-1").is_dir()
    assert not (directory / "step-00000002").exists()


def test_an_unlisted_file_is_an_error(tmp_path: Path, run) -> None:
    whole = tmp_path / "step-00000002"
    shutil.copytree(run[0] / "step-00000002", whole)
    (whole / "extra.bin").write_bytes(b"x")
    with pytest.raises(Damaged, match=r"extra\.bin is not listed"):
        read_checkpoint(whole)
    assert verify_checkpoint(whole).problems == ("extra.bin is not listed in manifest.json",)


def test_a_directory_under_another_steps_name_is_not_believed(tmp_path: Path, run) -> None:
    shutil.copytree(run[0] / "step-00000002", tmp_path / "step-00000009")
    with pytest.raises(Damaged, match="step-00000009 holds step 2"):
        read_checkpoint(tmp_path / "step-00000009")


def test_all_damaged_is_an_error_that_names_each_and_stays_one(tmp_path: Path, run) -> None:
    shutil.copytree(run[0], tmp_path, dirs_exist_ok=True)
    flip(tmp_path / "step-00000001" / "model.safetensors", 600, 0)
    (tmp_path / "step-00000002" / "manifest.json").unlink()
    for attempt in (1, 2):
        with pytest.raises(CheckpointError) as caught:
            manager(tmp_path, attempt=attempt).load_latest(Training().state)
        assert "step-00000002: there is no manifest.json" in str(caught.value)
        assert "step-00000001: model.safetensors: block 0" in str(caught.value)


def test_a_later_version_is_refused_not_stepped_over(tmp_path: Path, run) -> None:
    shutil.copytree(run[0], tmp_path, dirs_exist_ok=True)
    file = tmp_path / "step-00000002" / "manifest.json"
    manifest = read_manifest(file.parent).model_copy(update={"version": 2})
    file.write_bytes(_sealed(manifest))
    with pytest.raises(Unsupported, match=r"version 2; this dist-train reads .* version 1"):
        manager(tmp_path, attempt=1).load_latest(Training().state)
    assert (tmp_path / "step-00000002").is_dir()


def _sealed(manifest: Manifest) -> bytes:
    return dump_canonical(manifest.sealed().model_dump())


def test_a_manifest_cannot_lead_out_of_its_directory(run) -> None:
    manifest = read_manifest(run[0] / "step-00000002")
    for name in ("../x", "/etc/passwd", "..", "a/b", ".hidden", "x\n"):
        bad = manifest.files[0].model_copy(update={"name": name})
        with pytest.raises(Damaged, match="not a version-1 manifest"):
            parse_manifest(_sealed(manifest.model_copy(update={"files": [bad]})))


def test_the_block_is_named_in_a_file_of_several(tmp_path: Path) -> None:
    import torch

    manager(tmp_path).save(1, {"big": torch.arange(BLOCK_BYTES, dtype=torch.float32)})
    file = tmp_path / "step-00000001" / "big.safetensors"
    flip(file, 2 * BLOCK_BYTES + 5, 0)
    with pytest.raises(Damaged, match=r"block 2 \(bytes 2097152 to 3145727\)") as caught:
        read_checkpoint(file.parent)
    assert caught.value.block == 2
    flip(file, 2 * BLOCK_BYTES + 5, 0)
    flip(file, file.stat().st_size - 1, 7)
    with pytest.raises(Damaged, match="block 4"):
        read_checkpoint(file.parent)
