"""The estimate of one config: its own strategy, the others at the same size, and the least that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dist_train.config.schema import RunConfig
from dist_train.errors import ConfigError
from dist_train.estimate.activation_memory import ActivationMemory
from dist_train.estimate.candidate_sizes import (
    Candidate,
    chosen_candidate,
    growing_sizes,
    other_candidates,
)
from dist_train.estimate.measured_parts import MeasuredParts
from dist_train.estimate.rank_total import RankTotal, rank_total
from dist_train.estimate.shape_model import make_shape_model
from dist_train.strategies.rank_memory import NotForThisModel, RankMemory, as_on_a_rank, bytes_of, memory_of
from dist_train.trainer.pretrained import unstarted

# What stays free for the CUDA context, NCCL's buffers and gaps between blocks.
FITTING_PART = 0.9

_WHOLE_CASTS = (
    "activations: autocast keeps a whole copy of every weight in bf16 until the backward pass; "
    "param_dtype=bf16 with trainer.precision=fp32 keeps none"
)


@dataclass(frozen=True)
class Row:
    """One strategy at one size.

    Args:
        ranks: totals of the ranks that differ, the one that holds most first.
        micro_batch: samples.
    """

    candidate: Candidate
    ranks: tuple[RankTotal, ...]
    micro_batch: int
    notes: tuple[str, ...]

    @property
    def peak(self) -> int:
        """Of the rank that needs most."""
        return max(rank.peak for rank in self.ranks)

    @property
    def exchanges_little(self) -> tuple[int, int]:
        """The larger, the less ranks exchange: those that share layers do most, then those that cut most."""
        return self.candidate.data_size, self.peak

    @property
    def complete(self) -> bool:
        """Whether every part of the peak is known."""
        return all(rank.complete for rank in self.ranks)

    def fits(self, memory: int) -> bool | None:
        """Whether the peak leaves a tenth free; None: a part of it is not known."""
        if self.peak > memory * FITTING_PART:
            return False
        return True if self.complete else None

    def record(self, memory: int | None) -> dict[str, Any]:
        """As JSON."""
        chosen = self.candidate
        return {
            "strategy": chosen.name,
            "options": dict(chosen.options),
            "mesh": [list(dimension) for dimension in chosen.mesh],
            "nodes": chosen.nodes,
            "gpus_per_node": chosen.per_node,
            "chosen": chosen.is_chosen,
            "micro_batch": self.micro_batch,
            "peak": self.peak,
            "fits": None if memory is None else self.fits(memory),
            "ranks": [asdict(rank) for rank in self.ranks],
            "notes": list(self.notes),
        }


class JobEstimate:
    """Estimates of one config at any size.

    Args:
        config: valid.
        on_gpu: for GPUs; else for CPUs.

    Raises:
        ConfigError: the model cannot be built here.
    """

    def __init__(self, config: RunConfig, on_gpu: bool) -> None:
        self.config = unstarted(config)
        self._on_gpu = on_gpu
        self.parts = MeasuredParts(self.config, make_shape_model(self.config), on_gpu)

    def row(self, candidate: Candidate, memory: int | None = None) -> Row:
        """One candidate.

        Args:
                memory: leave the activations out where the rest, or a bound of them, is larger already.

        Raises:
            ConfigError: the model does not fit its strategy.
        """
        accumulate = self.config.trainer.accumulate
        micro = max(1, -(-self.config.data.batch_size // (candidate.data_size * accumulate)))
        fitted = candidate.fitted
        held = memory_of(fitted.strategy, fitted.options, self.parts.model, candidate.world_size, accumulate)
        with as_on_a_rank(fitted.strategy, fitted.options, self.parts.model, candidate.world_size):
            if memory is None or self._bounds_fit(held, micro, memory):
                totals = self._totals(held, lambda dtype: self.parts.activations(micro, dtype))
            else:
                totals = self._totals(held, lambda dtype: None)
        notes = [*held[0].notes]
        state = self.parts.optimizer(held[0].shapes)
        if state.bytes is not None and not state.exact and self._is_cut(held[0]):
            notes.append("optimizer: its state has other shapes than the parts, so that it is an estimate")
        if self.config.trainer.precision != "fp32" and held[0].gathered and held[0].compute_dtype is None:
            notes.append(_WHOLE_CASTS)
        return Row(candidate, tuple(totals), micro, tuple(notes))

    def _totals(
        self, held: Sequence[RankMemory], activations: Callable[[str | None], ActivationMemory | None]
    ) -> list[RankTotal]:
        accumulate = self.config.trainer.accumulate
        return [
            rank_total(self.parts, one, activations(one.compute_dtype), accumulate, self._on_gpu)
            for one in held
        ]

    def _bounds_fit(self, held: Sequence[RankMemory], micro: int, memory: int) -> bool:
        """Whether what is known without measuring this micro-batch fits."""
        bounds: tuple[Callable[[str | None], ActivationMemory | None], ...] = (
            lambda dtype: None,
            lambda dtype: self.parts.activations_at_least(micro, dtype),
        )
        return all(
            max(total.peak for total in self._totals(held, bound)) <= memory * FITTING_PART
            for bound in bounds
        )

    def rows(self, nodes: int, per_node: int) -> list[Row]:
        """The config's own strategy first, then the others at this size, from the least to the most cut up.

        Raises:
            ConfigError: the config's own does not fit the ranks or the model.
        """
        first = self.row(chosen_candidate(self.config, nodes, per_node))
        others = [
            row
            for row in self._fitting(self._others(nodes, per_node))
            if (row.candidate.fitted.strategy.name, row.candidate.mesh)
            != (first.candidate.fitted.strategy.name, first.candidate.mesh)
        ]
        return [first, *sorted(others, key=lambda row: row.exchanges_little, reverse=True)]

    def smallest(self, memory: int, per_node: int) -> Row | None:
        """The fewest ranks with a strategy that fits, and of those the one that cuts least."""
        sizes = list(growing_sizes(per_node))
        if not any(self._may_fit(one, memory) for one in self._others(*sizes[-1])):
            return None
        lowest = None
        for nodes, procs in sizes:
            rows: list[Row] = []
            # A rank that shares layers has activations of its own, which take seconds to measure.
            for alike in _most_shares_first(self._others(nodes, procs)):
                rows += self._fitting(alike, memory)
                fitting = [row for row in rows if row.fits(memory)]
                if fitting:
                    return max(fitting, key=lambda row: row.exchanges_little)
            # Of those whose parameters alone are too large the peak is not known: more ranks may help.
            least = min((row.peak for row in rows if row.complete), default=None)
            if least is not None and lowest is not None and least > lowest * 0.99:
                return None  # more ranks do not help any more
            lowest = least if least is not None else lowest
        return None

    def record(self, nodes: int, per_node: int, most_per_node: int, memory: int | None) -> dict[str, Any]:
        """All of it as JSON.

        Args:
            most_per_node: ranks per node at other sizes.
            memory: bytes of one GPU.

        Raises:
            ConfigError: the config's strategy does not fit the ranks or the model.
        """
        rows = self.rows(nodes, per_node)
        parameters = list(self.parts.model.parameters())
        smallest = None if memory is None else self.smallest(memory, most_per_node)
        found = {
            "model": type(self.parts.model).__name__,
            "parameters": sum(parameter.numel() for parameter in parameters),
            "parameter_bytes": bytes_of(parameters),
            "optimizer": self.config.optimizer.target,
            "batch_size": self.config.data.batch_size,
            "accumulate": self.config.trainer.accumulate,
            "gpu_memory": memory,
            "rows": [row.record(memory) for row in rows],
            "smallest": None if smallest is None else smallest.record(memory),
            "fitting_here": _best(rows, memory),
        }
        return {**found, "notes": [*self.parts.notes, *self._compiled()]}

    def _is_cut(self, held: RankMemory) -> bool:
        return any(held.shapes[name] != tuple(one.shape) for name, one in self.parts.model.named_parameters())

    def _compiled(self) -> Sequence[str]:
        compiled = self.config.trainer.compile is not None
        return ["the model is compiled: it keeps less than these activations"] if compiled else []

    def _others(self, nodes: int, per_node: int) -> Iterable[Candidate]:
        return other_candidates(self.config, nodes, per_node, self.parts.notes)

    def _may_fit(self, candidate: Candidate, memory: int) -> bool:
        """Whether there is room without activations."""
        try:
            return self.row(candidate, 0).peak <= memory * FITTING_PART
        except ConfigError:
            return False

    def _fitting(self, candidates: Iterable[Candidate], memory: int | None = None) -> Iterable[Row]:
        for candidate in candidates:
            try:
                yield self.row(candidate, memory)
            except NotForThisModel:
                continue
            except ConfigError as error:  # the model does not fit this strategy
                self.parts.notes[f"{candidate.name} is left out: {error.what}"] = None


def _most_shares_first(candidates: Iterable[Candidate]) -> list[list[Candidate]]:
    """Those of equally many shares of the data together: ranks exchange the less, the more there are."""
    by_shares: dict[int, list[Candidate]] = {}
    for candidate in candidates:
        by_shares.setdefault(candidate.data_size, []).append(candidate)
    return [by_shares[size] for size in sorted(by_shares, reverse=True)]


def _best(rows: Sequence[Row], memory: int | None) -> int | None:
    """The index of the row that fits and cuts least."""
    if memory is None:
        return None
    fitting = [index for index, row in enumerate(rows) if row.fits(memory)]
    return max(fitting, key=lambda index: rows[index].exchanges_little, default=None)
