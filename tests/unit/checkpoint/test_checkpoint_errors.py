"""Every flipped bit and every truncation is caught before use, named, and stepped over."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
from checkpoint_cases import Training, manager, manifest_of, saved_run
from checkpoint_places import Place
from golden_checkpoints import HERE

from dist_train.checkpoint.format import block_hashes
from dist_train.checkpoint.format.blocks import BLOCK_BYTES
from dist_train.checkpoint.format.canonical_json import dump_canonical, load_canonical
from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint, UnsupportedCheckpoint
from dist_train.checkpoint.format.manifest import parse_manifest
from dist_train.checkpoint.manager import CheckpointManager
from dist_train.checkpoint.store.file import FileStorage
from dist_train.checkpoint.store.reader import read_checkpoint
from dist_train.checkpoint.store.verify import check_checkpoint, verify_checkpoint
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
    record = load_canonical(place.manifest(2).to_bytes())
    place.write("step-00000002/manifest.json", _sealed(record | {"version": 3}))
    with pytest.raises(UnsupportedCheckpoint, match=r"version 3; this dist-train reads .* versions 1, 2"):
        manager(place.location, attempt=1).load_latest(Training().state)
    assert place.storage.exists("step-00000002")


def _sealed(record: dict[str, Any]) -> bytes:
    rest = {key: value for key, value in record.items() if key != "self_hash"}
    return dump_canonical(rest | {"self_hash": xxhash.xxh3_128_hexdigest(dump_canonical(rest))})


def test_a_manifest_cannot_lead_out_of_its_directory(run) -> None:
    record = load_canonical(manifest_of(run[0], 2).to_bytes())
    for name in ("../x", "/etc/passwd", "..", "a/b", ".hidden", "x\n"):
        record["files"][0]["name"] = name
        with pytest.raises(DamagedCheckpoint, match="not a version-2 manifest"):
            parse_manifest(_sealed(record))


def _set(record: Any, path: str, value: Any) -> None:
    *outer, last = path.split()
    for key in outer:
        record = record[int(key) if isinstance(record, list) else key]
    if value is None:
        del record[last]
    else:
        record[int(last) if isinstance(record, list) else last] = value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("layouts", []),
        ("layouts L0", []),
        ("layouts L0", None),
        ("layouts L0 0", [0, [0]]),
        ("layouts L0 0 0", 99),
        ("layouts L0 0 0", -1),
        ("layouts L0 0 0", True),
        ("layouts L0 0 1", [0, 0]),
        ("layouts L0 0 1", [-1]),
        ("layouts L0 0 2", "627"),
        ("tensors model/emb.weight layout", "L99"),
        ("tensors model/emb.weight layout", None),
        ("tensors model/emb.weight shape", [24]),
        ("tensors model/emb.weight digest", "00"),
        ("tensors model/emb.weight more", 1),
        ("tensors", None),
        ("mesh", None),
        ("mesh", [["replicate", 0]]),
        ("mesh", [["replicate"]]),
        ("mesh", "replicate"),
        ("data_size", 0),
        ("files 0 blocks_xxh3", "x"),
        ("files", 1),
        ("files", None),
        ("files 0 name", None),
    ],
)
def test_a_manifest_with_its_own_hash_but_not_what_a_save_writes(run, path: str, value: Any) -> None:
    record = load_canonical(manifest_of(run[0], 2).to_bytes())
    parse_manifest(_sealed(record))
    _set(record, path, value)
    with pytest.raises(DamagedCheckpoint, match="not a version-2 manifest"):
        parse_manifest(_sealed(record))


@pytest.mark.parametrize("path", ["mesh", "data_size", "layouts"])
def test_version_1_has_no_word_of_version_2(path: str) -> None:
    raw = (HERE / "golden_v1" / "step-00000007" / "manifest.json").read_bytes()
    record = load_canonical(raw)
    assert _sealed(record) == raw
    with pytest.raises(DamagedCheckpoint, match="not a version-1 manifest"):
        parse_manifest(_sealed(record | {path: 1}))


class TestBlockHashesInAFileOfTheirOwn:
    """Of a file with more blocks than the manifest lists."""

    KEY = "step-00000001/big.safetensors"

    @pytest.fixture(autouse=True)
    def large(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch

        monkeypatch.setattr(block_hashes, "MOST_INLINE", 2)
        manager(place.location).save(1, {"big": torch.arange(BLOCK_BYTES, dtype=torch.float32)})

    def test_it_is_read_and_verified(self, place: Place) -> None:
        entry = next(entry for entry in place.manifest(1).files if entry.name == "big.safetensors")
        assert (entry.xxh3_128, len(entry.blocks_xxh3)) == ([], 32)
        assert len(place.storage.read(f"{self.KEY}.blocks")) == 5 * 16
        assert check_checkpoint(place.storage, "step-00000001").self_hash == place.manifest(1).self_hash
        assert read_checkpoint(place.storage, "step-00000001").tensors["big/value"][-1] == BLOCK_BYTES - 1

    def test_the_block_is_named(self, place: Place) -> None:
        place.flip(self.KEY, 2 * BLOCK_BYTES + 5, 0)
        with pytest.raises(DamagedCheckpoint, match="block 2 "):
            read_checkpoint(place.storage, "step-00000001")

    @pytest.mark.parametrize("at", [0, 40, -1])
    def test_every_bit_of_it_counts(self, place: Place, at: int) -> None:
        place.flip(f"{self.KEY}.blocks", at, 3)
        with pytest.raises(DamagedCheckpoint, match=r"big\.safetensors\.blocks does not match its hash"):
            read_checkpoint(place.storage, "step-00000001")

    def test_without_it_the_checkpoint_is_damaged(self, place: Place) -> None:
        place.delete(f"{self.KEY}.blocks")
        with pytest.raises(DamagedCheckpoint, match=r"big\.safetensors\.blocks is missing"):
            read_checkpoint(place.storage, "step-00000001")


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


@pytest.mark.parametrize(
    "file", ["model.safetensors", "state.json", "big.safetensors", "big.safetensors.blocks"]
)
def test_a_link_that_leads_nowhere_is_a_missing_file(
    tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_hashes, "MOST_INLINE", 1)
    model, big = torch.nn.Linear(1, 1), torch.zeros(2 * BLOCK_BYTES)
    CheckpointManager(tmp_path, run_id="a", attempt=0).save(1, {"model": model, "big": big})
    checkpoint = tmp_path / "step-00000001"
    (checkpoint / file).unlink()
    (checkpoint / file).symlink_to(tmp_path / "purged")
    assert verify_checkpoint(checkpoint).problems == (f"{file} is missing",)
    with pytest.raises(DamagedCheckpoint, match=f"^{file} is missing") as caught:
        read_checkpoint(FileStorage(tmp_path), checkpoint.name)
    assert caught.value.file == file
