"""Which strategies, meshes and numbers of ranks are compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dist_train import registry
from dist_train.config.schema import RunConfig
from dist_train.errors import ConfigError
from dist_train.strategies.prepare import load_strategy
from dist_train.strategies.rank_memory import candidates_of
from dist_train.strategies.strategy_fit import FittedStrategy, fit_strategy

_MOST_NODES = 1024


@dataclass(frozen=True)
class Candidate:
    """One row: a strategy with its options at one number of ranks."""

    name: str
    options: Mapping[str, Any]
    fitted: FittedStrategy
    nodes: int
    per_node: int
    is_chosen: bool = False

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return self.nodes * self.per_node

    @property
    def mesh(self) -> tuple[tuple[str, int], ...]:
        """Names and sizes of its dimensions."""
        return self.fitted.place.mesh

    @property
    def data_size(self) -> int:
        """Shares of the data."""
        return self.fitted.place.data_size


def chosen_candidate(config: RunConfig, nodes: int, per_node: int) -> Candidate:
    """The config's own strategy.

    Raises:
        ConfigError: it does not fit so many ranks.
    """
    name, options = config.strategy.name, config.strategy.options
    fitted = fit_strategy(name, options, nodes * per_node, accumulate=config.trainer.accumulate)
    return Candidate(name, options, fitted, nodes, per_node, True)


def other_candidates(
    config: RunConfig, nodes: int, per_node: int, notes: dict[str, None]
) -> Iterator[Candidate]:
    """Every strategy that works with so many ranks, on each of its meshes.

    Options of the config's own strategy are kept where another has options of the same names.

    Args:
        notes: gets those that cannot be loaded.
    """
    for name in registry.names("strategies"):
        try:
            strategy = load_strategy(name)
        except ConfigError as error:  # of another package
            notes[f"{name} is left out: {error.what}"] = None
            continue
        known = strategy.Options.model_fields
        kept = {key: value for key, value in config.strategy.options.items() if key in known}
        for mesh in candidates_of(strategy, nodes * per_node):
            try:
                fitted = fit_strategy(
                    name, {**kept, **mesh}, nodes * per_node, accumulate=config.trainer.accumulate
                )
            except ConfigError:
                continue  # not for so many ranks, or for so few micro-batches
            if fitted.strategy.name != name:
                continue  # one rank has `single` in its place
            yield Candidate(name, {**kept, **mesh}, fitted, nodes, per_node)


def growing_sizes(per_node: int) -> Iterator[tuple[int, int]]:
    """(nodes, ranks per node): 1, 2, 4, … ranks of one node, then 2, 4, 8, … nodes."""
    procs = 1
    while procs < per_node:
        yield 1, procs
        procs *= 2
    nodes = 1
    while nodes <= _MOST_NODES:
        yield nodes, per_node
        nodes *= 2
