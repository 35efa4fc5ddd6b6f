"""What every checkpoint storage must keep: atomic commits, exact bytes, the expected errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from dist_train import registry
from dist_train.checkpoint.store.open_storage import KIND, open_storage
from dist_train.checkpoint.store.storage import CheckpointStorage

MakeStorage = Callable[[], CheckpointStorage]

_STAGING, _OTHER_STAGING, _NAME, _RETIRED = ".step-7.tmp-1", ".step-7.tmp-2", "step-00000007", ".step-7.old-1"
_FILES = {
    "model.safetensors": bytes(range(256)) * 8200,  # more than two blocks
    "state.json": b"{}",
    "empty.bin": b"",
    "manifest.json": b'{"step":7}',
}
_REPLACEMENTS = 40


def check_storage(make_storage: MakeStorage) -> None:
    """Raise AssertionError for the first rule of checkpoint storages that this one breaks.

    Args:
        make_storage: makes a storage at a location that holds nothing and does not exist yet.
    """
    check_registered_scheme(make_storage())
    check_nothing_there(make_storage())
    check_commit(make_storage())
    check_several_writers(make_storage())
    check_ranges(make_storage())
    check_no_commit_replaces(make_storage())
    check_leftovers(make_storage())
    check_records(make_storage())
    check_quarantine(make_storage())
    check_retire(make_storage())
    check_manager(make_storage())


def check_registered_scheme(storage: CheckpointStorage) -> None:
    """The registry finds the class by its scheme, and opens the same location again."""
    name = storage.name
    assert name in registry.names(KIND), (
        f"{name!r} is not among the registered schemes {registry.names(KIND)}"
    )
    kind = type(storage)
    assert registry.load(KIND, name) is kind, f"the registry gives another class for {name}://"
    again = open_storage(storage.location)
    assert type(again) is kind, f"{storage.location} opens as {type(again).__name__}, not {kind.__name__}"
    assert again.location == storage.location, f"{storage.location} opens as {again.location}"


def check_nothing_there(storage: CheckpointStorage) -> None:
    """A location that does not exist is empty, and reading does not create it."""
    assert list(storage.names()) == [], "a location that does not exist has names"
    for key in (_NAME, "fence.json", f"{_NAME}/manifest.json"):
        assert not storage.exists(key), f"exists({key!r}) where nothing was written"
    for what, call in _reads(storage):
        assert _raises(FileNotFoundError, call), f"{what} of a missing key raises no FileNotFoundError"
    storage.prepare()
    storage.prepare()
    assert list(storage.names()) == [], "prepare leaves names behind"
    storage.remove(_STAGING)  # a missing one is no error
    free = storage.free_bytes()
    assert free is None or free > 0, f"free_bytes is {free!r}"


def _reads(storage: CheckpointStorage) -> Iterable[tuple[str, Callable[[], object]]]:
    yield "read", lambda: storage.read(f"{_NAME}/manifest.json")
    yield "open", lambda: storage.open(f"{_NAME}/manifest.json")
    yield "files", lambda: storage.files(_NAME)


def check_commit(storage: CheckpointStorage) -> None:
    """A staging area is no checkpoint; a committed one is there at once, byte for byte, for every opener."""
    storage.prepare()
    _stage(storage, _STAGING)
    assert _NAME not in storage.names(), "a checkpoint is listed before its commit"
    assert not storage.exists(_NAME), "a checkpoint exists before its commit"
    storage.commit(_STAGING, _NAME)
    storage.sync()
    for opened in (storage, open_storage(storage.location)):
        assert opened.exists(_NAME), "a committed checkpoint does not exist"
        assert opened.exists(f"{_NAME}/manifest.json"), "its manifest does not exist"
        _compare(opened, _NAME)
        assert list(opened.names()) == [_NAME], f"after the commit there is {sorted(opened.names())}"


def check_several_writers(storage: CheckpointStorage) -> None:
    """What another opener has written into a staging area is seen there, and committed with the rest."""
    storage.prepare()
    storage.create_staging(_STAGING)
    other, own = (f"{_STAGING}/{name}" for name in ("rank1.safetensors", "manifest.json"))
    assert not storage.exists(other), f"exists({other!r}) where nothing was written"
    _put(open_storage(storage.location), other, b"of another rank")
    assert storage.exists(other), "a file that another rank has written to the staging area does not exist"
    _put(storage, own, b"{}")
    storage.seal(_STAGING)
    storage.commit(_STAGING, _NAME)
    storage.sync()
    assert storage.read(f"{_NAME}/rank1.safetensors") == b"of another rank", "another rank's file is lost"


def check_ranges(storage: CheckpointStorage) -> None:
    """A part of a file is read as asked for; a stream knows its size and ends with 0."""
    _committed(storage)
    key, content = f"{_NAME}/model.safetensors", _FILES["model.safetensors"]
    for start, count in ((0, 1), (5, 1000), (len(content) - 3, 100), (1 << 20, 1 << 20), (17, None)):
        end = None if count is None else start + count
        assert storage.read(key, start, count) == content[start:end], f"read({key!r}, {start}, {count})"
    stream = storage.open(key)
    try:
        assert stream.size == len(content), f"the size of {key} is {stream.size}, not {len(content)}"
        target, at = bytearray(len(content)), 0
        while count := stream.readinto(memoryview(target)[at : at + 300_000]):
            at += count
        assert bytes(target) == content, "a stream gives other bytes than were written"
    finally:
        stream.close()


def check_no_commit_replaces(storage: CheckpointStorage) -> None:
    """Of several commits under one name one succeeds; the others raise FileExistsError and change nothing."""
    _committed(storage)
    _stage(storage, _OTHER_STAGING, {"manifest.json": b"another"})
    refused = _raises(FileExistsError, lambda: storage.commit(_OTHER_STAGING, _NAME))
    assert refused, "a commit under a name that is taken raises no FileExistsError"
    _compare(storage, _NAME)
    storage.remove(_OTHER_STAGING)

    contenders = [f".step-8.tmp-{number}" for number in range(4)]
    for staging in contenders:
        _stage(storage, staging, {"manifest.json": staging.encode()})
    won: list[str] = []
    start = threading.Barrier(len(contenders))

    def contend(staging: str) -> None:
        start.wait()
        if not _raises(FileExistsError, lambda: storage.commit(staging, "step-00000008")):
            won.append(staging)

    _in_threads([lambda staging=staging: contend(staging) for staging in contenders])  # type: ignore[misc]
    assert len(won) == 1, f"{len(won)} of {len(contenders)} commits at the same time succeeded"
    found = storage.read("step-00000008/manifest.json")
    assert found == won[0].encode(), f"the commit of {won[0]} succeeded, and {found!r} is there"


def check_leftovers(storage: CheckpointStorage) -> None:
    """What a killed writer left is listed under its name, and can be removed, twice."""
    storage.prepare()
    storage.create_staging(_STAGING)
    with storage.new_file(f"{_STAGING}/model.safetensors") as write:
        write(memoryview(b"torn"))
    assert _STAGING in storage.names(), "a staging area that was left is not listed"
    storage.remove(_STAGING)
    storage.remove(_STAGING)
    assert list(storage.names()) == [], "a removed staging area is still listed"
    storage.create_staging(_STAGING)  # the next save of this attempt


def check_records(storage: CheckpointStorage) -> None:
    """A record is replaced as a whole: a reader gets the old bytes or the new ones."""
    storage.prepare()
    versions = [str(number).encode() * 50_000 for number in range(10)]
    storage.replace_record("fence.json", versions[0], ".fence.json.tmp-1")
    torn: list[int] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            found = storage.read("fence.json")
            if found not in versions:
                torn.append(len(found))

    def replace() -> None:
        try:
            for number in range(_REPLACEMENTS):
                storage.replace_record("fence.json", versions[number % 10], ".fence.json.tmp-1")
        finally:
            done.set()

    _in_threads([look, replace])
    assert not torn, f"a reader met a record that was half replaced: {torn[0]} bytes"
    found = open_storage(storage.location).read("fence.json")
    assert found == versions[(_REPLACEMENTS - 1) % 10], "the record is not the one that was written last"
    assert list(storage.names()) == ["fence.json"], f"beside the record there is {sorted(storage.names())}"


def check_quarantine(storage: CheckpointStorage) -> None:
    """A quarantined checkpoint is whole, under a new name, and its name is free again; it can be removed."""
    for number in (1, 2):
        _committed(storage)
        moved = storage.quarantine(_NAME)
        assert moved == f"quarantine/{_NAME}-{number}", f"the name in quarantine is {moved!r}"
        assert not storage.exists(_NAME), "a quarantined checkpoint is still there under its name"
        _compare(storage, moved)
    assert _NAME not in storage.names(), "a quarantined checkpoint is still listed"
    aside = storage.quarantined()
    if aside:  # optional
        wanted = [f"quarantine/{_NAME}-{number}" for number in (1, 2)]
        assert aside == wanted, f"quarantined lists {aside}, not {wanted}"
        storage.remove(aside[0])
        assert storage.quarantined() == wanted[1:], "a quarantined checkpoint cannot be removed"


def check_retire(storage: CheckpointStorage) -> None:
    """A retired checkpoint is gone, and nothing is left of it."""
    _committed(storage)
    storage.retire(_NAME, _RETIRED)
    assert not storage.exists(_NAME), "a retired checkpoint is still there"
    assert list(storage.names()) == [], f"after retire there is {sorted(storage.names())}"
    _committed(storage)


def check_manager(storage: CheckpointStorage) -> None:
    """CheckpointManager saves, resumes, removes old checkpoints and refuses an older attempt."""
    import torch

    from dist_train.checkpoint.manager import CheckpointManager
    from dist_train.checkpoint.store.verify import list_checkpoints
    from dist_train.errors import CheckpointWriteError

    def manager(attempt: int) -> CheckpointManager:
        return CheckpointManager(storage, keep_last=2, run_id="contract", attempt=attempt)

    weights, loaded = torch.arange(400_000, dtype=torch.float32), torch.zeros(400_000)
    state = {"weights": weights, "note": "c"}
    first = manager(1)
    hashes = [first.save(step, {**state, "note": note}).state_hash for step, note in enumerate(("a", "b"), 1)]
    last = first.save(3, state)
    assert first.steps() == [2, 3], f"keep_last=2 keeps {first.steps()}"
    target = {"weights": loaded, "note": ""}
    restored = manager(2).load_latest(target)
    assert restored is not None, "load_latest finds nothing"
    assert (restored.step, restored.state_hash) == (3, last.state_hash), f"load_latest gives {restored}"
    assert torch.equal(loaded, weights), "load_latest gives other numbers than were saved"
    assert manager(2).load(2, target).state_hash == hashes[1], "load(2) gives another checkpoint"
    assert first.verify(3).ok
    listed = [(line.step, line.problem) for line in list_checkpoints(storage.location)]
    assert listed == [(2, None), (3, None)], f"list_checkpoints gives {listed}"
    late = _raises(CheckpointWriteError, lambda: first.save(4, state))
    assert late, "an attempt commits after a newer one has begun"


def _stage(storage: CheckpointStorage, staging: str, files: dict[str, bytes] = _FILES) -> None:
    storage.create_staging(staging)
    for name, content in files.items():
        _put(storage, f"{staging}/{name}", content)
    storage.seal(staging)


def _put(storage: CheckpointStorage, key: str, content: bytes) -> None:
    with storage.new_file(key) as write:
        for start in range(0, len(content), 1_000_000):
            write(memoryview(content)[start : start + 1_000_000])


def _committed(storage: CheckpointStorage) -> None:
    storage.prepare()
    _stage(storage, _STAGING)
    storage.commit(_STAGING, _NAME)
    storage.sync()


def _compare(storage: CheckpointStorage, name: str) -> None:
    assert storage.files(name) == set(_FILES), f"{name} has the files {sorted(storage.files(name))}"
    for file, content in _FILES.items():
        assert storage.read(f"{name}/{file}") == content, f"{name}/{file} is not what was written"


def _raises(kind: type[Exception], call: Callable[[], object]) -> bool:
    try:
        call()
    except kind:
        return True
    return False


def _in_threads(calls: Iterable[Callable[[], None]]) -> None:
    errors: list[Exception] = []

    def run(call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise AssertionError(f"{type(errors[0]).__name__}: {errors[0]}") from errors[0]
