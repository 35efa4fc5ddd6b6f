"""Compare the ranks' steps of an iterable data set before they train on them: order, content and end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
import xxhash

from dist_train.data.streams.stream_steps import StepRead
from dist_train.distributed.control_group import Control, JsonValue
from dist_train.errors import ConfigError

# Steps that one comparison covers: as many batches of this rank are held. The first ones cover fewer.
STEPS_COMPARED = 8


def agreed_steps(
    steps: Iterator[StepRead], control: Control, position: tuple[int, int]
) -> Iterator[StepRead]:
    """The same steps, once every rank has read as many and the same; collective once per STEPS_COMPARED.

    So that no rank trains on a step that another does not have: it would wait for it for ever.

    Args:
        steps: this rank's.
        control: all ranks.
        position: epoch and first step.

    Raises:
        ConfigError: a rank has read something else or less; on all ranks at the same step.
        Exception: what reading raised on this rank.
    """
    if control.world_size == 1:
        yield from steps
        return
    size, first = 1, position[1]
    while True:
        ready, error = _read(steps, size)
        _compare(ready, error, control, (position[0], first))
        yield from ready
        if len(ready) < size:
            return
        first += size
        size = min(2 * size, STEPS_COMPARED)


def _read(steps: Iterator[StepRead], size: int) -> tuple[list[StepRead], Exception | None]:
    ready: list[StepRead] = []
    try:
        ready.extend(islice(steps, size))
    except Exception as error:  # the other ranks wait for the comparison
        return ready, error
    return ready, None


def _compare(
    ready: list[StepRead], error: Exception | None, control: Control, position: tuple[int, int]
) -> None:
    own: list[JsonValue] = [
        list(position),
        sum(step.step_count for step in ready),
        xxhash.xxh3_64_hexdigest("".join(step.first_hash for step in ready).encode()),
        None if error is None else f"{type(error).__name__}: {error}",
    ]
    everywhere: list[Any] = control.all_gather(own)
    if error is not None:
        raise error
    for rank, other in enumerate(everywhere):
        if other[3] is not None:
            raise ConfigError(f"rank {rank} cannot read its data set", cause=other[3])
    where = f"from step {position[1]} of epoch {position[0]} on"
    _refuse("positions", "epoch and step", [other[0] for other in everywhere], where)
    _refuse("numbers of samples", "samples", [other[1] for other in everywhere], where)
    _refuse("samples", "hashes", [other[2] for other in everywhere], where)


def _refuse(what: str, name: str, values: list[Any], where: str) -> None:
    if all(value == values[0] for value in values):
        return
    raise ConfigError(
        f"the ranks read different {what} {where}: {name} of ranks 0, 1, … are {values}",
        cause="every rank reads the whole stream and takes its own samples of each step; the streams differ",
        hint="give all ranks the same stream: not divided by rank (split_by_node, split_dataset_by_node), "
        "files in sorted order, random draws from torch's, numpy's or Python's global generator, which the "
        "loader seeds; or put the samples into shards and use dist_train.data.ShardedStream",
    )


def hash_of_sample(sample: Any) -> str:
    """Hash a sample's tensors, arrays, numbers and texts; of other objects, the type's name."""
    digest = xxhash.xxh3_64()
    _add(digest, sample)
    return str(digest.hexdigest())


def _add(digest: Any, value: Any) -> None:
    digest.update(type(value).__name__.encode())
    if isinstance(value, torch.Tensor):
        _add_tensor(digest, value)
    elif isinstance(value, np.ndarray) and value.dtype.kind not in "OSU":
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, bytes | bytearray):
        digest.update(bytes(value))
    elif isinstance(value, str | int | float | complex | np.generic | np.ndarray) or value is None:
        digest.update(repr(value).encode())
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _add(digest, key)
            _add(digest, item)
    elif isinstance(value, list | tuple):
        for item in value:
            _add(digest, item)


def _add_tensor(digest: Any, tensor: torch.Tensor) -> None:
    digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    if tensor.layout == torch.strided and not tensor.is_quantized:
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(plain.view(torch.uint8).numpy().tobytes())
