"""Checking and listing checkpoints without loading them; nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from dist_train.checkpoint.blocks import check_file
from dist_train.checkpoint.canonical import load_canonical
from dist_train.checkpoint.damage import Damaged
from dist_train.checkpoint.fence import read_fence
from dist_train.checkpoint.layout import MANIFEST, STATE_JSON, parse_step, step_directories
from dist_train.checkpoint.manifest import Manifest, check_listing, read_manifest
from dist_train.errors import CheckpointError, NotFoundError


@dataclass(frozen=True)
class Report:
    """The outcome of one verification; whole if `problems` is empty."""

    path: Path
    manifest: Manifest | None
    problems: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """True when every byte is as it was written."""
        return not self.problems

    @property
    def bytes(self) -> int:
        """Size of the data files."""
        return sum(entry.bytes for entry in self.manifest.files) if self.manifest else 0


@dataclass(frozen=True)
class Listed:
    """One line of a listing; the data files were not read."""

    step: int
    path: Path
    manifest: Manifest | None
    problem: str | None
    score: float | None


def read_committed(path: Path) -> Manifest:
    """The manifest of a checkpoint whose list of files agrees with its directory.

    Raises:
        Damaged: no manifest, a damaged one, a missing or an unlisted file.
    """
    try:
        manifest = read_manifest(path)
    except FileNotFoundError as error:
        raise Damaged(f"there is no {MANIFEST}", file=MANIFEST) from error
    if parse_step(path.name) not in (None, manifest.step):
        raise Damaged(f"{path.name} holds step {manifest.step}", file=MANIFEST)
    check_listing(path, manifest)
    return manifest


def check_checkpoint(path: Path) -> Manifest:
    """Read every byte and compare it.

    Raises:
        Damaged: naming the file and block.
    """
    manifest = read_committed(path)
    for entry in manifest.files:
        check_file(path / entry.name, entry.bytes, entry.xxh3_128, entry.block_bytes)
    return manifest


def verify_checkpoint(path: str | Path) -> Report:
    """Read every byte of one checkpoint directory; all problems are listed, not only the first.

    Raises:
        NotFoundError: there is no such directory.
    """
    path = Path(path)
    if not path.is_dir():
        raise NotFoundError(f"no checkpoint directory {path}")
    problems: list[str] = []
    manifest: Manifest | None = None
    try:
        manifest = read_manifest(path)
        read_committed(path)
    except FileNotFoundError:
        problems.append(f"there is no {MANIFEST}")
    except (CheckpointError, OSError) as error:
        problems.append(str(error))
    for entry in manifest.files if manifest else ():
        try:
            check_file(path / entry.name, entry.bytes, entry.xxh3_128, entry.block_bytes)
        except FileNotFoundError:
            continue  # check_listing has named it
        except (Damaged, OSError) as error:
            problems.append(str(error))
    return Report(path, manifest, tuple(problems))


def list_checkpoints(directory: str | Path) -> list[Listed]:
    """Every `step-<n>` of a checkpoint directory, oldest first, with what its manifest says."""
    directory = Path(directory)
    fence = read_fence(directory)
    listed = []
    for step, path in step_directories(directory).items():
        try:
            manifest = read_committed(path)
            stale = fence is not None and not fence.admits(manifest)
            problem = f"written by attempt {manifest.attempt}, which had been given up" if stale else None
            listed.append(Listed(step, path, manifest, problem, read_score(path)))
        except (CheckpointError, OSError) as error:
            listed.append(Listed(step, path, None, str(error), None))
    return listed


def read_score(path: Path) -> float | None:
    """The score that was given to save(), from state.json; None if none was."""
    try:
        state = load_canonical((path / STATE_JSON).read_bytes())
    except (OSError, ValueError):
        return None
    reserved = state.get("reserved") if isinstance(state, dict) else None
    score = reserved.get("score") if isinstance(reserved, dict) else None
    return float(score) if isinstance(score, int | float) else None
