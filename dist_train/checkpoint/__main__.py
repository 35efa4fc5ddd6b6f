"""`python -P -m dist_train.checkpoint list|verify|show|quarantined PATH`: JSON lines; no torch.

One per checkpoint. PATH is a path or a URL.

`copy PATH TARGET`: one line per checkpoint that was copied.
`import SOURCE TARGET [--entry KEY] [--keep-names]` and `export SOURCE TARGET [--entry KEY]
[--max-shard-bytes N]`: one line; these load torch.

The command line runs this as a process of its own, so that it imports no package that loads torch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dist_train.checkpoint.format.layout import MANIFEST
from dist_train.checkpoint.format.manifest import Manifest, copies_of_parts
from dist_train.checkpoint.store.checkpoint_names import is_there, read_manifest, step_names
from dist_train.checkpoint.store.copy_checkpoint import copy_checkpoint
from dist_train.checkpoint.store.last_finite import read_non_finite
from dist_train.checkpoint.store.open_storage import open_checkpoint, open_storage
from dist_train.checkpoint.store.storage import CheckpointStorage
from dist_train.checkpoint.store.verify import (
    ListedCheckpoint,
    list_checkpoints,
    read_committed,
    read_score,
    verify_stored,
)
from dist_train.config.bucket_url import scheme_of
from dist_train.errors import DistTrainError, ExitCode, NotFoundError, UsageError
from dist_train.rundir.step_names import parse_step

_VERBS = ("list", "verify", "show", "quarantined")
_CONVERSIONS = ("import", "export")


def main(argv: Sequence[str]) -> int:
    """Print one JSON object per checkpoint below PATH (or for PATH itself); return the exit code.

    The code is 0 where they could be examined: what is wrong with one is in its `problems`.
    """
    try:
        for record in _run_verb(argv):
            print(json.dumps(record), flush=True)
    except DistTrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    except OSError as error:
        print(f"error: the checkpoints could not be read: {error}", file=sys.stderr)
        return int(ExitCode.UNAVAILABLE)
    return 0


def _run_verb(argv: Sequence[str]) -> Iterator[dict[str, Any]]:
    if len(argv) == 2 and argv[0] in _VERBS:
        yield from _records(argv[0], argv[1])
    elif len(argv) == 3 and argv[0] == "copy":
        yield from _copies(argv[1], argv[2])
    elif len(argv) >= 3 and argv[0] in _CONVERSIONS:
        yield _convert(argv)
    else:
        raise UsageError(f"usage: python -m dist_train.checkpoint {'|'.join([*_VERBS, *_CONVERSIONS])} PATH")


def _convert(argv: Sequence[str]) -> dict[str, Any]:
    from dist_train.checkpoint.weights.convert import export_weights, import_weights

    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("verb", "source", "target"):
        parser.add_argument(name)
    parser.add_argument("--entry")
    parser.add_argument("--keep-names", action="store_true")
    parser.add_argument("--max-shard-bytes", type=int)
    arguments = parser.parse_args(argv)
    source, target = Path(arguments.source), Path(arguments.target)
    if arguments.verb == "export":
        given = source if scheme_of(arguments.source) is None else arguments.source
        return export_weights(given, target, entry=arguments.entry, max_shard_bytes=arguments.max_shard_bytes)
    return import_weights(source, target, entry=arguments.entry, keep_names=arguments.keep_names)


def _records(verb: str, location: str) -> Iterator[dict[str, Any]]:
    if verb == "quarantined":
        yield from ({"name": name.rpartition("/")[2]} for name in open_storage(location).quarantined())
        return
    storage, found = _committed(location)
    if verb == "list":
        yield from (_listed(storage, entry) for entry in list_checkpoints(storage))
    elif verb == "verify":
        yield from (_verified(storage, one) for one in found)
    else:
        yield _shown(storage, found[-1])


def _committed(location: str) -> tuple[CheckpointStorage, list[str]]:
    """The names there: the one that is meant, or all of a folder."""
    storage, name = open_checkpoint(location)
    if is_checkpoint(storage, name):
        return storage, [name]
    storage = open_storage(location)
    found = list(step_names(storage).values())
    if not found:
        raise NotFoundError(f"there is no checkpoint in {location}")
    return storage, found


def _copies(location: str, target: str) -> Iterator[dict[str, Any]]:
    storage, found = _committed(location)
    for one in found:
        copied = copy_checkpoint(storage, one, open_storage(target))
        yield {
            "step": copied.manifest.step,
            "path": copied.location,
            "bytes": sum(entry.bytes for entry in copied.manifest.files),
            "was_there": copied.was_there,
        }


def is_checkpoint(storage: CheckpointStorage, name: str) -> bool:
    """Whether this is one checkpoint, not a folder of them; a damaged one may lack its manifest."""
    return storage.exists(f"{name}/{MANIFEST}") or (parse_step(name) is not None and is_there(storage, name))


def _listed(storage: CheckpointStorage, entry: ListedCheckpoint) -> dict[str, Any]:
    record: dict[str, Any] = {"step": entry.step, "path": entry.location, "score": entry.score}
    if entry.manifest is not None:
        record |= _summary(entry.manifest)
    problems = [] if entry.problem is None else [entry.problem]
    name = step_names(storage).get(entry.step)
    return {**record, "non_finite": _non_finite(storage, name, problems), "problems": problems}


def _non_finite(storage: CheckpointStorage, name: str | None, problems: Sequence[str]) -> list[str] | None:
    """The tensors that are not finite; None where it cannot be known."""
    return None if problems or name is None else read_non_finite(storage, name)


def _verified(storage: CheckpointStorage, name: str) -> dict[str, Any]:
    report = verify_stored(storage, name)
    step = report.manifest.step if report.manifest else parse_step(name)
    files = [entry.name for entry in report.manifest.files] if report.manifest else []
    return {
        "step": step,
        "path": report.location,
        "bytes": report.bytes,
        "files": files,
        "copies": None if report.manifest is None else copies_of_parts(report.manifest),
        "non_finite": _non_finite(storage, name, report.problems),
        "problems": list(report.problems),
    }


def _shown(storage: CheckpointStorage, name: str) -> dict[str, Any]:
    manifest = read_committed(storage, name, read_manifest)
    return {
        "path": storage.locate(name),
        "score": read_score(storage, name),
        "non_finite": read_non_finite(storage, name),
        **_summary(manifest),
        "manifest": manifest.model_dump(),
        "problems": [],
    }


def _summary(manifest: Manifest) -> dict[str, Any]:
    return {
        "epoch": manifest.epoch,
        "samples_in_epoch": manifest.samples_in_epoch,
        "samples_total": manifest.samples_total,
        "bytes": sum(entry.bytes for entry in manifest.files),
        "created_at": manifest.created_at,
        "attempt": manifest.attempt,
        "world_size": manifest.world_size,
        "weights_hash": manifest.weights_hash,
        "state_hash": manifest.state_hash,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
