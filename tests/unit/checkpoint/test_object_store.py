"""Checkpoints at s3:// URLs, against a real server on loopback: what a user and an operator see."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from bucket_server import BUCKET, SECRET, BucketServer, bucket_server
from checkpoint_cases import Training, manager, saved_run

from dist_train.checkpoint.store.checkpoint_names import read_manifest
from dist_train.checkpoint.store.fence import read_fence
from dist_train.checkpoint.store.object_store import object_stream
from dist_train.checkpoint.store.object_store.bucket import Bucket
from dist_train.checkpoint.store.open_storage import open_storage
from dist_train.checkpoint.store.verify import list_checkpoints, verify_checkpoint
from dist_train.errors import CheckpointWriteError, ConfigError, UnavailableError

URL = f"s3://{BUCKET}/runs/one"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    with bucket_server(tmp_path / "buckets", monkeypatch) as found:
        yield found


def test_a_run_goes_on_from_a_bucket(server: BucketServer) -> None:
    hashes = saved_run(URL, 3, keep_last=2)
    training = Training(seed=9)
    restored = manager(URL, attempt=1).load_latest(training.state)
    assert restored is not None
    assert restored.step == 3
    assert training.weights() == hashes[3]
    assert [one.step for one in list_checkpoints(URL)] == [2, 3]
    assert sorted(key for key in server.objects() if "/data/" not in key) == [
        "runs/one/.create-only",
        "runs/one/fence.json",
        "runs/one/step-00000002/manifest.json",
        "runs/one/step-00000003/manifest.json",
    ]


@pytest.mark.parametrize("change", ["bit", "cut", "gone"])
def test_damage_is_named_and_the_one_before_is_taken(server: BucketServer, change: str) -> None:
    hashes = saved_run(URL, 2)
    (path,) = (p for key, p in server.objects().items() if "step-2" in key and "model.safetensors" in key)
    raw = bytearray(path.read_bytes())
    if change == "bit":
        raw[-1] ^= 1
    path.write_bytes(raw if change == "bit" else raw[:-1])
    if change == "gone":
        path.unlink()
    (problem,) = verify_checkpoint(f"{URL}/step-00000002").problems
    assert "model.safetensors" in problem
    training = Training(seed=9)
    restored = manager(URL, attempt=1).load_latest(training.state)
    assert restored is not None
    assert (restored.step, training.weights()) == (1, hashes[1])
    assert open_storage(URL).quarantined() == ["quarantine/step-00000002-1"]


@pytest.mark.parametrize("place", [3, 12, 60, -2])
def test_a_flipped_bit_of_the_manifest_is_found(server: BucketServer, place: int) -> None:
    hashes = saved_run(URL, 2)
    path = server.objects()["runs/one/step-00000002/manifest.json"]
    raw = bytearray(path.read_bytes())
    raw[place] ^= 4
    path.write_bytes(raw)
    training = Training(seed=9)
    restored = manager(URL, attempt=1).load_latest(training.state)
    assert restored is not None
    assert (restored.step, training.weights()) == (1, hashes[1])


def test_a_listing_that_lags_is_no_damage(server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> None:
    saved_run(URL, 2)
    found = Bucket.below
    monkeypatch.setattr(
        Bucket, "below", lambda self, folder: [one for one in found(self, folder) if "state" not in one.key]
    )
    assert verify_checkpoint(f"{URL}/step-00000002").ok


def test_a_large_file_goes_in_parts_and_comes_in_ranges(
    server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dist_train.checkpoint.store.object_store.bucket.PART_BYTES", 5 << 20)
    monkeypatch.setattr(object_stream, "RANGE_BYTES", 1 << 20)
    storage, content = open_storage(URL), os.urandom((11 << 20) + 17)
    storage.prepare()
    storage.create_staging(".step-1.tmp-0")
    changing = bytearray(1 << 20)
    with storage.new_file(".step-1.tmp-0/manifest.json") as write:
        for start in range(0, len(content), 1 << 20):
            piece = content[start : start + (1 << 20)]
            changing[: len(piece)] = piece
            write(memoryview(changing)[: len(piece)])  # the caller uses its memory again
    assert sum("partNumber" in line for line in server.log) == 3
    stream, whole = storage.open(".step-1.tmp-0/manifest.json"), io.BytesIO()
    target = memoryview(bytearray(700_000))
    while count := stream.readinto(target):
        whole.write(target[:count])
    stream.close()
    same = whole.getvalue() == content  # the difference of two such texts would take minutes
    assert same
    view = memoryview(bytearray(5 << 20))
    assert storage.open(".step-1.tmp-0/manifest.json").read_at(view, 100) == 5 << 20
    same = bytes(view) == content[100 : 100 + (5 << 20)]
    assert same


def test_a_store_that_ignores_the_condition_is_refused(server: BucketServer) -> None:
    server.ignores_conditions = True
    with pytest.raises(ConfigError, match="If-None-Match"):
        manager(URL).save(1, Training().state)


def test_no_bucket(server: BucketServer) -> None:
    with pytest.raises(ConfigError, match=r"cannot be written to s3://nothing/run: there is no such bucket"):
        manager("s3://nothing/run").save(1, Training().state)
    with pytest.raises(UnavailableError, match="there is no such bucket"):
        manager("s3://nothing/run", attempt=None).load_latest(Training().state)


def test_refused_credentials_are_in_no_message(
    server: BucketServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.fault = lambda number, line: "403"
    with pytest.raises(ConfigError, match="SignatureDoesNotMatch") as caught:
        manager(URL).save(1, Training().state)
    printed = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert SECRET not in printed


def test_a_server_that_fails_for_long_fails_the_save(
    server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dist_train.checkpoint.store.object_store.bucket._AGAIN_S", ())
    monkeypatch.setattr("dist_train.checkpoint.store.s3.retries", lambda: {"max_retries": 1})
    hashes = saved_run(URL, 1)
    server.fault = lambda number, line: "503"
    with pytest.raises((CheckpointWriteError, UnavailableError), match="503"):
        manager(URL, attempt=1).save(2, Training().state)
    server.forget()
    training = Training(seed=9)
    assert manager(URL, attempt=2).load_latest(training.state) is not None
    assert training.weights() == hashes[1]


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("s3://", ["names no bucket", "s3://BUCKET/PREFIX"]),
        ("s3:///runs", ["names no bucket"]),
        ("s3://key:hidden@bucket/runs", ["has credentials in it"]),
        ("s3://bucket/runs?X-Amz-Signature=hidden", ["`?`"]),
        ("s3://bucket/../other", ["`..`"]),
        ("s3://bucket//runs", ["empty part"]),
        ("gs://_/x", ["no name of a bucket"]),
        ("s4://bucket/runs", ["no checkpoint storage is registered", "s3://"]),
    ],
)
def test_urls_that_are_refused(url: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        open_storage(url)
    assert all(part in str(caught.value) for part in parts), caught.value
    assert "hidden" not in str(caught.value)


def test_no_credentials(server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ConfigError, match=r"no credentials for s3://bucket/runs/one"):
        manager(URL).save(1, Training().state)
    assert server.log == []


def test_without_the_extra_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        open_storage(URL)
    assert "pip install 'dist-train[object-store]'" in str(caught.value)


def test_attempts_go_on_where_the_run_directory_was_lost(server: BucketServer) -> None:
    first = manager(URL, attempt=0)
    training = Training()
    first.save(1, training.state)
    again = manager(URL, attempt=0)  # a node with an empty disk counts from 0
    assert again.load_latest(training.state) is not None
    again.save(2, training.state)
    fence = read_fence(open_storage(URL))
    assert fence is not None
    assert fence.attempt == 1
    late = read_manifest(open_storage(URL), "step-00000001")
    assert late.attempt == 0
    assert fence.admits(late), "what the new attempt found is its own"


def test_the_library_is_imported_by_the_first_request_alone() -> None:
    program = (
        "import sys; from dist_train.checkpoint.store.open_storage import open_storage; "
        "open_storage('s3://bucket/run'); open_storage('/tmp/run'); "
        "assert not {'obstore', 'boto3', 'torch'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
