"""A save up to the point from which only its tensors' values are needed: collected, compared, gathered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from dist_train.checkpoint.agreement import on_every_rank, with_all_ranks
from dist_train.checkpoint.run_context import meet, place_of, settle_finite_check
from dist_train.checkpoint.sharded_state import PartsHere, choose_parts, refuse_unlike_sharding
from dist_train.checkpoint.state.collect import CollectedState, collect, contiguous_on_host
from dist_train.checkpoint.state.data_position import DataPosition, identity, position_from
from dist_train.checkpoint.state.pending_gradients import without_pending_gradients
from dist_train.checkpoint.state.per_rank_state import (
    OwnState,
    gather_contents,
    gather_per_rank,
    names_of_entries,
    own_tensors,
    refuse_unlike_entries,
)
from dist_train.checkpoint.state.replicas import Compared, compare_replicas
from dist_train.checkpoint.state.stage_tensors import complete_stages

if TYPE_CHECKING:
    from dist_train.distributed.control_group import Control


@dataclass(frozen=True)
class SaveFacts:
    """What `CheckpointManager.save` is told besides the state; its arguments of the same names."""

    data: Mapping[str, Any] | None = None
    epoch: int = 0
    samples_in_epoch: int = 0
    samples_total: int = 0
    score: float | None = None

    def position(self, collected: CollectedState) -> DataPosition:
        """The position in the data; that of the one loader in the state where none was given."""
        if self.data is None and not (self.epoch or self.samples_in_epoch or self.samples_total):
            return position_from(collected.entries)
        return DataPosition(identity(self.data or {}), self.epoch, self.samples_in_epoch, self.samples_total)


@dataclass(frozen=True)
class PreparedSave:
    """What one rank saves; the tensors are views of live memory.

    Args:
        step: optimizer steps done.
        collected: the state.
        own: of the PerRank entries, what is this rank's.
        compared: what came of the comparison with the other ranks.
        per_rank: manifest key -> what rank 0 writes for all ranks: RNG state, buffers that differ.
        position: in the data.
        score: for keep_best.
        parts: of sharded tensors; None where there are none.
    """

    step: int
    collected: CollectedState
    own: OwnState
    compared: Compared
    position: DataPosition
    score: float | None
    per_rank: Mapping[str, torch.Tensor] = field(default_factory=dict)
    parts: PartsHere | None = None


def prepare_save(
    control: Control, step: int, state: Mapping[str, Any], facts: SaveFacts, *, copies_later: bool = False
) -> PreparedSave:
    """Call all of the user's code, and compare what the ranks hold (collective).

    Args:
        control: all ranks.
        step: optimizer steps done.
        state: as for `CheckpointManager.save`.
        facts: what is told besides.
        copies_later: every tensor is copied before it is written: one that is not contiguous is not copied
            here as well, if nothing else reads it.

    Raises:
        CheckpointError, ReplicaMismatch, NonFiniteError: as `CheckpointManager.save`.
    """
    place = place_of(control)
    meet(control, f"CheckpointManager.save({step})", step)
    settle_finite_check()
    as_it_is = copies_later and control.world_size == 1

    def collected_here() -> CollectedState:
        found = collect(without_pending_gradients(state))
        return contiguous_on_host(found) if control.is_main and not as_it_is else found

    collected, own_names = with_all_ranks(control, collected_here, names_of_entries)
    names, sharded, absent = zip(*own_names, strict=True)
    refuse_unlike_entries(step, names)
    if any(absent):
        complete_stages(control, step, collected)
        sharded = (True,) * control.world_size
    is_sharded = refuse_unlike_sharding(step, sharded)
    # The last of the user's code: what it draws or changes is compared and saved.
    own_state = gather_contents(control, collected)
    compared = compare_replicas(control, step, collected)
    parts = choose_parts(control, step, collected) if is_sharded else None
    own = on_every_rank(control, lambda: own_tensors(collected, control.rank, place, compared.differing))
    return PreparedSave(
        step,
        collected,
        own_state,
        compared,
        facts.position(collected),
        None if facts.score is None else float(facts.score),  # a tensor may change while it is written
        gather_per_rank(control, own),
        parts,
    )
