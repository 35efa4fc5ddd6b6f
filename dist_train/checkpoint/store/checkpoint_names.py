"""Which checkpoints and leftovers a storage holds, and the manifest of one of them."""

from __future__ import annotations

from dist_train.checkpoint.format.layout import MANIFEST, parse_leftover
from dist_train.checkpoint.format.manifest import Manifest, parse_manifest
from dist_train.checkpoint.store.known_records import KnownRecords
from dist_train.checkpoint.store.storage import CheckpointStorage
from dist_train.rundir.step_names import parse_step

_known: KnownRecords[Manifest] = KnownRecords()


def step_names(storage: CheckpointStorage) -> dict[int, str]:
    """List every `step-<n>` in ascending order; some may be damaged or have no manifest."""
    found = {step: name for name in storage.names() if (step := parse_step(name)) is not None}
    return dict(sorted(found.items()))


def committed_steps(storage: CheckpointStorage) -> list[int]:
    """List the steps that have a manifest, in ascending order; their files are not verified."""
    return [step for step, name in step_names(storage).items() if storage.exists(f"{name}/{MANIFEST}")]


def leftovers(storage: CheckpointStorage, attempt: int) -> list[str]:
    """List what attempts up to and including `attempt` began and did not finish."""
    makers = {name: parse_leftover(name) for name in storage.names()}
    return sorted(name for name, maker in makers.items() if maker is not None and maker <= attempt)


def is_there(storage: CheckpointStorage, name: str) -> bool:
    """Whether there is a checkpoint, whole or not, under this name."""
    try:
        storage.files(name)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # reading it gives the reason
    return True


def read_manifest(storage: CheckpointStorage, name: str) -> Manifest:
    """Read the manifest of a checkpoint.

    Raises:
        FileNotFoundError: there is none.
        DamagedCheckpoint, UnsupportedCheckpoint: as parse_manifest.
    """
    return parse_manifest(_manifest_bytes(storage, name))


def read_manifest_head(storage: CheckpointStorage, name: str) -> Manifest:
    """`read_manifest` without the entries of the tensors; the same bytes are parsed once per process."""
    return _known.get(_manifest_bytes(storage, name), lambda raw: _head(parse_manifest(raw)))


def note_written(manifest: Manifest, raw: bytes) -> None:
    """Remember what `read_manifest_head` will return for a manifest that this process has written."""
    _known.put(raw, _head(manifest))


def _head(manifest: Manifest) -> Manifest:
    return manifest.model_copy(update={"tensors": {}, "aliases": {}})


def _manifest_bytes(storage: CheckpointStorage, name: str) -> bytes:
    try:
        return storage.read(f"{name}/{MANIFEST}")
    except NotADirectoryError as error:  # a file that is called as a checkpoint
        raise FileNotFoundError(*error.args) from error
