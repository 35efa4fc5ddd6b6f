"""A directory or a URL finds its storage; an unknown scheme is refused with the known ones."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from checkpoint_cases import saved_run
from checkpoint_places import GROUP, memory_registered
from memory_storage import MemoryStorage

from dist_train import registry
from dist_train.checkpoint.__main__ import main
from dist_train.checkpoint.manager import CheckpointManager
from dist_train.checkpoint.store.file import FileStorage
from dist_train.checkpoint.store.open_storage import open_checkpoint, open_storage
from dist_train.errors import ConfigError


def test_a_directory_is_one_whatever_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for location in (tmp_path, str(tmp_path), "runs/a", "s3:bucket", f"file://{tmp_path}"):
        assert type(open_storage(location)) is FileStorage
    assert open_storage(f"file://{tmp_path}").location == str(tmp_path)
    assert CheckpointManager("runs/a").directory == tmp_path / "runs" / "a"
    assert open_storage("runs/a").locate("step-00000001") == "runs/a/step-00000001"


def test_a_checkpoint_of_a_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved_run(tmp_path, 1)
    for folder, location in ((tmp_path, "step-00000001"), (tmp_path / "step-00000001", ".")):
        monkeypatch.chdir(folder)
        storage, name = open_checkpoint(location)
        assert "manifest.json" in storage.files(name)


def test_a_storage_is_taken_as_it_is(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    assert CheckpointManager(storage).storage is storage


def test_a_plugins_scheme(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with memory_registered(monkeypatch):
        saved_run("memory://a/b", 2)
        assert type(CheckpointManager("memory://a/b").storage) is MemoryStorage
        storage, name = open_checkpoint("memory://a/b/step-00000002")
        assert (storage.location, name) == ("memory://a/b", "step-00000002")
        for verb in ("list", "verify", "show"):
            assert main([verb, "memory://a/b"]) == 0
            assert '"path": "memory://a/b/step-00000002"' in capsys.readouterr().out
        assert main(["verify", "memory://a/b/step-00000002"]) == 0


def test_an_unknown_scheme_is_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError, match=r"no checkpoint storage is registered for hdfs://host/run"
    ) as caught:
        CheckpointManager("hdfs://host/run")
    assert caught.value.cause == "known schemes: az://, file://, gs://, s3://"
    assert f"the entry point 'hdfs' in the group {GROUP}" in str(caught.value)
    with memory_registered(monkeypatch), pytest.raises(ConfigError, match="did you mean memory://"):
        open_storage("memroy://run")


def test_a_url_that_was_made_a_path_is_refused() -> None:
    with pytest.raises(ConfigError, match="give the URL as text"):
        CheckpointManager(Path("s3://bucket/run"))


def test_a_plugin_that_is_no_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("odd", "builtins:str", GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry] if group == GROUP else [])
    registry._owners.cache_clear()
    with pytest.raises(ConfigError, match="makes no CheckpointStorage"):
        open_storage("odd://run")
    registry._owners.cache_clear()
