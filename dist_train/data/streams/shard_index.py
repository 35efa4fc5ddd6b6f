"""Count the samples of shards: from an index file, else shared among the ranks; all ranks then agree."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import xxhash

from dist_train.distributed.control_group import Control, JsonValue
from dist_train.errors import ConfigError
from dist_train.rundir.durable_files import replace_file

logger = logging.getLogger(__name__)
_FORMAT = 1


def count_shards(
    shards: Sequence[Any], count: Callable[[Any], int], index: Path | None, control: Control
) -> tuple[int, ...]:
    """Samples of each shard. Collective: each rank counts its part of those that the index does not have.

    Args:
        shards: the same list on all ranks.
        count: counts one shard.
        index: a JSON file, read and written by rank 0; None counts at every start.
        control: all ranks.

    Raises:
        ConfigError: the lists of the ranks differ, or a shard cannot be counted; on all ranks alike.
    """
    compare_lists(shards, control)
    found: Any = control.broadcast(_from_index(index, shards) if control.is_main else None)
    known: list[int | None] = found
    missing = [number for number, samples in enumerate(known) if samples is None]
    if not missing:
        return tuple(int(samples or 0) for samples in known)
    if control.is_main:
        where = "at every start; index= names a file that keeps them" if index is None else f"for {index}"
        logger.info("counting the samples of %d shards, %s", len(missing), where)
    own = missing[control.rank :: control.world_size]
    for answer in control.all_gather(_counted(shards, own, count)):
        assert isinstance(answer, dict)
        if "error" in answer:
            raise ConfigError(
                f"cannot count shard {answer['shard']}",
                cause=str(answer["error"]),
                hint="check that every node can read the shard, and that the reader fits it",
            )
        for number, samples in answer.items():
            assert isinstance(samples, int)
            known[int(number)] = samples
    counts = tuple(int(samples or 0) for samples in known)
    if index is not None and control.is_main:
        _write_index(index, shards, counts)
    return counts


def compare_lists(shards: Sequence[Any], control: Control) -> None:
    """Refuse lists of shards that differ between ranks. Collective.

    Raises:
        ConfigError: they differ; the message names the number of shards on each rank.
    """
    everywhere = control.all_gather([len(shards), hash_of_names(shards)])
    if all(other == everywhere[0] for other in everywhere):
        return
    lengths = [other[0] for other in everywhere if isinstance(other, list)]
    raise ConfigError(
        f"the ranks do not list the same shards in the same order: {lengths} shards",
        cause="each rank listed them itself, and its folder or the order of its listing differs",
        hint="sort the list (sorted(glob(...))), and use a folder that all nodes share",
    )


def hash_of_names(shards: Sequence[Any]) -> str:
    """Hash of the shards' base names, in order: the same where the folder is mounted somewhere else."""
    names = [Path(str(shard)).name for shard in shards]
    return xxhash.xxh3_64_hexdigest(json.dumps(names).encode())


def _counted(shards: Sequence[Any], numbers: Sequence[int], count: Callable[[Any], int]) -> JsonValue:
    counts: dict[str, JsonValue] = {}
    for number in numbers:
        try:
            counts[str(number)] = int(count(shards[number]))
        except Exception as error:  # the other ranks wait for an answer
            return {"error": f"{type(error).__name__}: {error}", "shard": str(shards[number])}
    return counts


def _from_index(index: Path | None, shards: Sequence[Any]) -> list[JsonValue]:
    nothing: list[JsonValue] = [None] * len(shards)
    if index is None or not index.exists():
        return nothing
    try:
        content = json.loads(index.read_text())
        entries = content["shards"] if content["format"] == _FORMAT else {}
        return [_if_unchanged(entries.get(str(shard)), shard) for shard in shards]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning("%s is not an index of shards (%s): they are counted again", index, error)
        return nothing


def _if_unchanged(entry: Any, shard: Any) -> int | None:
    if entry is None or entry["bytes"] != _size(shard):
        return None
    return int(entry["samples"])


def _write_index(index: Path, shards: Sequence[Any], counts: Sequence[int]) -> None:
    entries = {
        str(shard): {"samples": samples, "bytes": _size(shard)}
        for shard, samples in zip(shards, counts, strict=True)
    }
    content = json.dumps({"format": _FORMAT, "shards": entries}, indent=1).encode()
    try:
        replace_file(index, index.with_name(f".{index.name}.tmp"), content)
    except OSError as error:
        logger.warning("%s cannot be written (%s): shards are counted at every start", index, error)


def _size(shard: Any) -> int | None:
    try:
        return Path(str(shard)).stat().st_size
    except OSError:
        return None
