"""`python -P -m dist_train.checkpoint list|verify|show PATH`: JSON lines, one per checkpoint; no torch.

`import SOURCE TARGET [--entry KEY] [--keep-names]` and `export SOURCE TARGET`: one line; these load torch.

The command line runs this as a process of its own, so that it depends on no room that knows torch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dist_train.checkpoint.layout import MANIFEST, parse_step, step_directories
from dist_train.checkpoint.manifest import Manifest
from dist_train.checkpoint.verify import (
    Listed,
    list_checkpoints,
    read_committed,
    read_score,
    verify_checkpoint,
)
from dist_train.errors import DistTrainError, NotFoundError, UsageError

_VERBS = ("list", "verify", "show")
_CONVERSIONS = ("import", "export")


def main(argv: Sequence[str]) -> int:
    """Print one JSON object per checkpoint below PATH (or for PATH itself); the exit code says only
    whether they could be asked, what is wrong with one stands in its `problems`."""
    try:
        for record in _asked(argv):
            print(json.dumps(record), flush=True)
    except DistTrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    return 0


def _asked(argv: Sequence[str]) -> Iterator[dict[str, Any]]:
    if len(argv) == 2 and argv[0] in _VERBS:
        yield from _records(argv[0], Path(argv[1]))
    elif len(argv) >= 3 and argv[0] in _CONVERSIONS:
        yield _converted(argv)
    else:
        raise UsageError(f"usage: python -m dist_train.checkpoint {'|'.join([*_VERBS, *_CONVERSIONS])} PATH")


def _converted(argv: Sequence[str]) -> dict[str, Any]:
    from dist_train.checkpoint.convert import export_weights, import_weights

    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("verb", "source", "target"):
        parser.add_argument(name)
    parser.add_argument("--entry")
    parser.add_argument("--keep-names", action="store_true")
    words = parser.parse_args(argv)
    source, target = Path(words.source), Path(words.target)
    if words.verb == "export":
        return export_weights(source, target, entry=words.entry)
    return import_weights(source, target, entry=words.entry, keep_names=words.keep_names)


def _records(verb: str, path: Path) -> Iterator[dict[str, Any]]:
    single = is_checkpoint(path)
    found = [path] if single else list(step_directories(path).values())
    if not found:
        raise NotFoundError(f"there is no checkpoint in {path}")
    if verb == "list":
        yield from (_listed(entry) for entry in list_checkpoints(path.parent if single else path))
    elif verb == "verify":
        yield from (_verified(one) for one in found)
    else:
        yield _shown(found[-1])


def is_checkpoint(path: Path) -> bool:
    """Whether PATH is one checkpoint rather than a folder of them; a damaged one may lack its manifest."""
    return (path / MANIFEST).exists() or (path.is_dir() and parse_step(path.name) is not None)


def _listed(entry: Listed) -> dict[str, Any]:
    record: dict[str, Any] = {"step": entry.step, "path": str(entry.path), "score": entry.score}
    if entry.manifest is not None:
        record |= _summary(entry.manifest)
    return {**record, "problems": [] if entry.problem is None else [entry.problem]}


def _verified(path: Path) -> dict[str, Any]:
    report = verify_checkpoint(path)
    step = report.manifest.step if report.manifest else parse_step(path.name)
    files = [entry.name for entry in report.manifest.files] if report.manifest else []
    return {
        "step": step,
        "path": str(path),
        "bytes": report.bytes,
        "files": files,
        "problems": list(report.problems),
    }


def _shown(path: Path) -> dict[str, Any]:
    manifest = read_committed(path)
    return {
        "path": str(path),
        "score": read_score(path),
        **_summary(manifest),
        "manifest": manifest.model_dump(),
        "problems": [],
    }


def _summary(manifest: Manifest) -> dict[str, Any]:
    return {
        "epoch": manifest.epoch,
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
