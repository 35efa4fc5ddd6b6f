"""The protocol that every strategy implements."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeGuard, TypeVar, runtime_checkable

from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from dist_train.distributed.place import Place, check_together
from dist_train.distributed.run import Run
from dist_train.errors import ConfigError

B = TypeVar("B")
B_contra = TypeVar("B_contra", contravariant=True)


class StrategyOptions(BaseModel):
    """Base of every strategy's options: frozen; unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def is_for_one_process(strategy: object) -> bool:
    """Whether a strategy works in a single process only (`one_process`, which may be left out)."""
    return bool(getattr(strategy, "one_process", False))


def works_alone(strategy: object) -> bool:
    """Whether one process keeps the strategy, and is not given `single` in its place (`works_alone`, too)."""
    return is_for_one_process(strategy) or bool(getattr(strategy, "works_alone", False))


def places_model(strategy: object) -> bool:
    """Whether `wrap` takes the model where it was built (`places_model`, which may be left out)."""
    return bool(getattr(strategy, "places_model", False))


def spreads_parameters(strategy: object, options: StrategyOptions) -> bool:
    """Whether the optimizer gets DTensors: `spreads_parameters(options)`, which may be left out."""
    chosen = getattr(strategy, "spreads_parameters", None)
    return chosen is not None and bool(chosen(options))


def refuse_micro_batches(strategy: object, options: StrategyOptions, world_size: int, count: int) -> None:
    """Ask a strategy whether a step may have so many micro-batches: a member that may be left out.

    Args:
        count: micro-batches of each rank in a step (`trainer.accumulate`).

    Raises:
        ConfigError: it may not.
    """
    chosen = getattr(strategy, "refuse_micro_batches", None)
    if chosen is not None:
        chosen(options, world_size, count)


def refuse_device(strategy: object, options: StrategyOptions, device: str) -> None:
    """Ask a strategy whether its options fit the device: `refuse_device`, which may be left out.

    Args:
        device: `cpu` or `cuda`.

    Raises:
        ConfigError: they do not.
    """
    chosen = getattr(strategy, "refuse_device", None)
    if chosen is not None:
        chosen(options, device)


def place_of(strategy: object, options: StrategyOptions, rank: int, world_size: int) -> Place:
    """Where a strategy puts this rank: `place(options, rank, world_size)`, which may be left out.

    A strategy without it gives every rank the whole model and a share of the data.

    Raises:
        ConfigError: the ranks do not fit the strategy's mesh, or their places do not fit together.
    """
    return places_of(strategy, options, world_size)[rank]


def places_of(strategy: object, options: StrategyOptions, world_size: int) -> list[Place]:
    """The places of all ranks, as `place_of`: a strategy is asked for each, on every rank."""
    places = [place_alone(strategy, options, rank, world_size) for rank in range(world_size)]
    check_together(places)
    return places


def place_alone(strategy: object, options: StrategyOptions, rank: int, world_size: int) -> Place:
    """`place_of` without a look at the other ranks."""
    chosen = getattr(strategy, "place", None)
    if chosen is None:
        return Place.of_replica(rank, world_size)
    place = chosen(options, rank, world_size)
    if not isinstance(place, Place):
        raise ConfigError(
            f"`place` of {type(strategy).__name__} returns {place!r}",
            hint="return a dist_train.distributed.place.Place",
        )
    if place.world_size != world_size:
        mesh = " x ".join(f"{name} {size}" for name, size in place.mesh)
        raise ConfigError(
            f"the mesh {mesh} has {place.world_size} ranks, and there are {world_size}",
            hint="the sizes of the mesh multiply to nodes x ranks per node",
        )
    return place


@runtime_checkable
class Strategy(Protocol):
    """A strategy: each module of this package with the constant STRATEGY is one.

    `averages` guarantees that gradients come out as the mean over ranks: the weighting of uneven
    batches relies on it. A strategy for a single process sets `one_process = True`: it refuses
    several ranks, and with one rank it is not replaced by `single`; nor is one with `works_alone = True`.
    With `places_model = True` the model comes to `wrap` where it was built, and not on run.device.
    """

    name: str
    Options: type[StrategyOptions]
    averages: bool

    def wrap(self, model: nn.Module, run: Run, options: StrategyOptions) -> nn.Module:
        """Wrap a model, already on run.device, so that it trains on all ranks from rank 0's weights."""
        ...

    def unwrap(self, module: nn.Module) -> nn.Module:
        """Return the user's own module."""
        ...

    def no_sync(self, module: nn.Module) -> AbstractContextManager[None]:
        """A context in which backward accumulates gradients without all-reducing them."""
        ...

    def clip_norm(self, module: nn.Module, max_norm: float) -> Tensor | float:
        """Scale the gradients to a norm of at most max_norm; returns the norm before that.

        The norm is equal on all ranks. As a tensor it stays on the device: a float makes the host wait for
        the device at every step.
        """
        ...


class MicroBatchWork(Protocol[B_contra]):
    """What a step does with each micro-batch."""

    def loss(self, batch: B_contra) -> Tensor:
        """Call the model once, by `once_per_stage`; return what the backward pass begins at.

        What it returns on a rank that does not know the model's output is not looked at.
        """

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass from what `loss` has returned."""


@runtime_checkable
class StepStrategy(Protocol):
    """A strategy that does all forward and backward passes of a step itself: both members, or neither.

    Without them each micro-batch's forward and backward pass follow each other.
    """

    def run_step(self, module: nn.Module, batches: Sequence[B], work: MicroBatchWork[B]) -> None:
        """Run the passes of a step's micro-batches; `.grad` is then the mean over the shares of the data."""
        ...

    def gradient_norm(self, module: nn.Module) -> Tensor:
        """The norm of the whole gradient, each element once; equal on all ranks (collective)."""
        ...


def runs_steps(strategy: Strategy) -> TypeGuard[StepStrategy]:
    """Whether a strategy does the passes of a step itself."""
    return isinstance(strategy, StepStrategy)
