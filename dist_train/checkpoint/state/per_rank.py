"""PerRank: state that differs between ranks, such as a replay buffer or a data loader of another library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dist_train.checkpoint.state.encoding import decode, encode
from dist_train.checkpoint.state.own_copies import own_copies
from dist_train.checkpoint.store.reader import LoadedCheckpoint
from dist_train.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    import torch

    from dist_train.distributed.control_group import JsonValue

# (the states of all ranks that saved, this rank, the number of ranks now) -> this rank's state.
Reshard = Callable[[list[Any], int, int], Any]


class PerRank:
    """Marks an object of the state mapping as each rank's own: saved for every rank, not compared.

        state = {"model": model, "optimizer": optimizer, "replay": dt.checkpoint.PerRank(buffer)}

    Each rank writes its own, and gets back what it saved, its tensors on the CPU. At another number of ranks
    the checkpoint is refused, unless `reshard` says what each rank gets then. On loading, every node reads
    the states of all ranks.

    Args:
        obj: has state_dict() and load_state_dict().
        reshard: called on loading at another number of ranks, with the list of all saved states in the
            order of their ranks, this rank, and the number of ranks now; returns what this rank loads.

    Raises:
        ConfigError: `obj` lacks one of the methods.
    """

    def __init__(self, obj: Any, *, reshard: Reshard | None = None) -> None:
        for method in ("state_dict", "load_state_dict"):
            if not callable(getattr(obj, method, None)):
                raise ConfigError(
                    f"PerRank({type(obj).__name__}): it has no {method}()",
                    hint="give it an object with state_dict() and load_state_dict(state)",
                )
        self.obj = obj
        self.reshard = reshard


def encode_per_rank(key: str, value: PerRank, rank: int, tensors: dict[str, torch.Tensor]) -> JsonValue:
    """Return JSON for this rank's state; its tensors go into `tensors` under `rank<r>/state/<key>/`."""
    return encode(value.obj.state_dict(), f"rank{rank}/state/{key}", tensors)


def check_per_rank(state: Mapping[str, Any], loaded: LoadedCheckpoint, world_size: int) -> None:
    """Refuse each rank's own state where another number of ranks saved it, unless `reshard` divides it.

    Raises:
        CheckpointError: naming the entry and both numbers.
    """
    for key, value in _present(state, loaded).items():
        saved = len(loaded.entries[key]["content"])
        if saved != world_size and value.reshard is None:
            raise CheckpointError(
                f"'{key}' of {loaded.name} is each rank's own; {saved} ranks saved it, {world_size} load it",
                cause="which rank gets what is not known",
                hint=f"go on with {saved} ranks, or say it: PerRank(obj, reshard=lambda states, rank, "
                "world_size: states[rank % len(states)])",
            )


def apply_per_rank(state: Mapping[str, Any], loaded: LoadedCheckpoint, rank: int, world_size: int) -> None:
    """Load what `check_per_rank` has accepted."""
    own = own_copies(loaded)
    for key, value in _present(state, loaded).items():
        contents = loaded.entries[key]["content"]
        if len(contents) == world_size:
            mine = decode(contents[rank], own)
        else:
            states = [decode(content, own) for content in contents]
            mine = value.reshard(states, rank, world_size) if value.reshard is not None else None
        value.obj.load_state_dict(mine)


def _present(state: Mapping[str, Any], loaded: LoadedCheckpoint) -> dict[str, PerRank]:
    return {
        key: value for key, value in state.items() if isinstance(value, PerRank) and key in loaded.entries
    }
