"""What every strategy must keep: on several ranks it trains as plain PyTorch does on one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import ValidationError

from dist_train.errors import ConfigError
from dist_train.testing.contracts.rules import check_options, check_registered
from dist_train.testing.ranks import RanksFailed, run_ranks

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dist_train.strategies.base import Strategy

_STEPS, _MICRO, _MAX_NORM = 20, 2, 0.5
# Of the whole job, one after the other: also fewer samples than ranks.
_BATCHES = (8, 10, 7, 3, 1)
TOLERANCE = 1e-9


def check_strategy(
    strategy: Strategy,
    timeout_s: float = 90.0,
    *,
    worlds: Sequence[int] = (2, 3, 4),
    options: Mapping[str, Any] | None = None,
    device: str = "cpu",
) -> None:
    """Raise AssertionError for the first rule of strategies that this one breaks.

    Losses and gradient norms of 20 float64 steps, with clipping, two micro-batches each, and uneven and empty
    shares of the samples, equal those of a hand-written loop in one process within a relative 1e-9; the ranks
    begin with rank 0's weights; tied parameters stay tied and frozen ones as they are; unwrap gives the
    user's own module; nothing is left when the run is closed. A strategy with `run_step` is given as many
    micro-batches as ranks. A strategy with `one_process` refuses two ranks
    by a ConfigError instead. Its places cover the data coordinates, and one rank of each counts. Its ranks
    hold what can be (`check_memory`).

    Args:
        timeout_s: for each number of ranks.
        worlds: numbers of ranks; one that its `place` refuses is left out, but not all of them.
        options: of the strategy.
        device: cpu or cuda; on GPUs each rank needs its own, and no number of ranks may be left over.
    """
    name = check_registered("strategies", strategy)
    kind = check_options(strategy)
    try:
        kind(no_such_option=1)
    except ValidationError:
        pass
    else:
        raise AssertionError(f"{name}: Options takes a name that it does not have")
    check_places(strategy)
    check_memory(strategy)
    expected, given = train_by_hand(), dict(options or {})
    _compare(name, _run(name, 1, timeout_s, given, device), expected)
    if getattr(strategy, "one_process", False):
        if device == "cpu":
            _check_refusal(name, timeout_s, given)
        return
    fitting = [world for world in worlds if _fits(strategy, given, world)]
    assert fitting or not worlds, f"{name}: its places refuse {', '.join(map(str, worlds))} ranks"
    for world in fitting:
        _compare(name, _run(name, world, timeout_s, given, device), expected)


def _fits(strategy: Strategy, options: Mapping[str, Any], world_size: int) -> bool:
    from dist_train.strategies.base import places_of

    try:
        places_of(strategy, strategy.Options(**options), world_size)
    except ConfigError:
        return False
    return True


def check_places(strategy: Strategy, worlds: Sequence[int] = range(1, 9)) -> None:
    """Raise AssertionError where the places of a world's ranks do not fit together.

    A strategy may refuse a world size by ConfigError, then on every rank.
    """
    from dist_train.strategies.base import place_alone

    options = strategy.Options()
    for world_size in worlds:
        where = f"{strategy.name} on {world_size} rank(s)"
        places, refused = [], []
        for rank in range(world_size):
            try:
                places.append(place_alone(strategy, options, rank, world_size))
            except ConfigError:
                refused.append(rank)
        assert not (places and refused), f"{where}: refused on the ranks {refused} alone"
        meshes = {(place.mesh, place.data_size) for place in places}
        assert len(meshes) <= 1, f"{where}: the ranks have unlike meshes: {meshes}"
        counting = sorted(place.data_rank for place in places if place.counts)
        coordinates = list(range(places[0].data_size)) if places else []
        assert counting == coordinates, f"{where}: one rank counts for each data coordinate, not {counting}"


def check_memory(strategy: Strategy, worlds: Sequence[int] = range(2, 9)) -> None:
    """Raise AssertionError where what the ranks hold, as `dist-train estimate` adds it up, cannot be.

    Each rank names every parameter of the model, holds no more of one than there is, and has memory for what
    it holds. Sizes that the strategy refuses are left out.
    """
    from dist_train.strategies.base import is_for_one_process, places_of
    from dist_train.strategies.rank_memory import bytes_of, memory_of

    model, options = _model(seed=0), strategy.Options()
    whole = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    size = bytes_of(model.parameters()) // sum(math.prod(shape) for shape in whole.values())
    for world_size in [1] if is_for_one_process(strategy) else worlds:
        where = f"memory of {strategy.name} on {world_size} rank(s)"
        try:
            places_of(strategy, options, world_size)
        except ConfigError:
            continue
        try:
            ranks = memory_of(strategy, options, model, world_size, world_size)
        except ConfigError:
            continue
        for held in ranks:
            assert list(held.shapes) == list(whole), (
                f"{where}: it names {list(held.shapes)}, not {list(whole)}"
            )
            assert 0 <= held.rank < world_size, f"{where}: there is no rank {held.rank}"
            parts = {name: math.prod(shape) for name, shape in held.shapes.items()}
            larger = [name for name, count in parts.items() if count > math.prod(whole[name])]
            assert not larger, f"{where}: rank {held.rank} holds more of {larger} than there is"
            least = size * sum(parts.values())
            assert held.parameters >= least, f"{where}: {held.parameters} bytes for parts of {least}"


def _run(name: str, n: int, timeout_s: float, options: dict[str, Any], device: str) -> list[dict[str, Any]]:
    # This process may have used a GPU: then a fork of it cannot.
    start: Literal["fork", "spawn"] = "fork" if device == "cpu" else "spawn"
    try:
        return run_ranks(train_on_a_rank, n, timeout_s, args=(name, options, device), start=start)
    except RanksFailed as error:
        raise AssertionError(f"{name} on {n} rank(s): {error}") from error


def _compare(name: str, ranks: list[dict[str, Any]], expected: list[tuple[float, float]]) -> None:
    where = f"{name} on {len(ranks)} rank(s)"
    for rank, facts in enumerate(ranks):
        for step, (got, want) in enumerate(zip(facts["steps"], expected, strict=True)):
            for what, ours, theirs in zip(("loss", "gradient norm"), got, want, strict=True):
                said = (
                    f"{where}: {what} of step {step} is {ours!r} on rank {rank}, one process has {theirs!r}"
                )
                assert math.isclose(ours, theirs, rel_tol=TOLERANCE, abs_tol=1e-15), said
        assert not facts["untied"], f"{where}: the tied parameters are no longer one"
        assert not facts["thawed"], f"{where}: a parameter that needs no gradient was changed"
        assert facts["unwraps"], f"{where}: unwrap does not give the module that was wrapped"
        assert not facts["group"], f"{where}: the process group is there after the run was closed"
        assert not facts["threads"], f"{where}: threads are left: {facts['threads']}"


def _check_refusal(name: str, timeout_s: float, options: dict[str, Any]) -> None:
    try:
        run_ranks(train_on_a_rank, 2, timeout_s, args=(name, options))
    except RanksFailed as error:
        if all(ConfigError.__name__ in text for text in error.tracebacks.values()):
            return
        raise AssertionError(f"{name} on 2 ranks fails without a ConfigError: {error}") from error
    raise AssertionError(f"{name} trains on 2 ranks as if they were one process")


def train_by_hand() -> list[tuple[float, float]]:
    """Loss and gradient norm of each step, by a loop that knows nothing of dist_train."""
    import torch

    model = _model(seed=0)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    out = []
    for step in range(_STEPS):
        inputs, targets = _batch(step)
        optimizer.zero_grad()
        loss = _loss(model, inputs, targets) / len(inputs)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), _MAX_NORM)
        optimizer.step()
        out.append((float(loss.detach()), float(norm)))
    return out


def train_on_a_rank(name: str, options: Mapping[str, Any], device: str = "cpu") -> dict[str, Any]:
    """The same training by the strategy, on each rank's share of the same batches."""
    import threading

    import torch
    import torch.distributed as torch_dist

    from dist_train.resilience.session import init
    from dist_train.strategies.prepare import load_strategy, prepare

    strategy = load_strategy(name)
    with init(device=device, timeout_s=30.0 if device == "cpu" else 120.0) as run:
        model = _model(seed=run.rank)  # the wrapped one must have rank 0's weights
        wrapped = prepare(model, name, **options)
        optimizer = torch.optim.AdamW([p for p in wrapped.parameters() if p.requires_grad], lr=0.01)
        place, steps = run.place, []
        for step in range(_STEPS):
            optimizer.zero_grad()
            inputs, targets = (part.to(run.device) for part in _batch(step))
            own = slice(place.data_rank, None, place.data_size)
            scale = place.data_size / len(inputs)
            loss = _accumulate(strategy, wrapped, inputs[own], targets[own], scale, run.world_size)
            norm = float(strategy.clip_norm(wrapped, _MAX_NORM))
            optimizer.step()
            steps.append((run.control.sum([loss if place.counts else 0.0])[0] / place.data_size, norm))
        plain: Any = strategy.unwrap(wrapped)
        unwraps, untied = plain is model, plain.last.weight is not plain.first.weight
        # A stage that does not use a parameter has no values of it.
        thawed = not plain.fixed.is_meta and not torch.equal(_whole(plain.fixed).cpu(), _model(seed=0).fixed)
    left = [t.name for t in threading.enumerate() if t is not threading.main_thread() and not t.daemon]
    return {
        "steps": steps,
        "unwraps": unwraps,
        "untied": untied,
        "thawed": thawed,
        "group": torch_dist.is_initialized(),
        "threads": left,
    }


def _whole(tensor: Any) -> Tensor:
    """All of a tensor; collective where it is sharded."""
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach()


def _accumulate(
    strategy: Strategy, wrapped: nn.Module, inputs: Tensor, targets: Tensor, scale: float, world_size: int
) -> float:
    from contextlib import nullcontext

    from dist_train.strategies.base import runs_steps

    if runs_steps(strategy):
        work = _Work(wrapped)
        strategy.run_step(wrapped, _micro_batches(inputs, targets, scale, max(_MICRO, world_size)), work)
        return work.total
    total = 0.0
    for micro, (x, y, weight) in enumerate(_micro_batches(inputs, targets, scale, _MICRO)):
        last = micro == _MICRO - 1
        with nullcontext() if last else strategy.no_sync(wrapped):
            loss = _loss(wrapped, x, y) * weight
            loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return total


def _micro_batches(
    inputs: Tensor, targets: Tensor, scale: float, count: int
) -> list[tuple[Tensor, Tensor, float]]:
    """Inputs, targets and weight of each; without a sample a rank takes part with one that counts nothing."""
    parts = [(inputs[micro::count], targets[micro::count], scale) for micro in range(count)]
    one, other = (part[:1] for part in _batch(0))
    return [part if len(part[0]) else (one, other, 0.0) for part in parts]


class _Work:
    """A step's passes, for a strategy that orders them itself."""

    def __init__(self, wrapped: nn.Module) -> None:
        self._wrapped = wrapped
        self.total = 0.0

    def loss(self, batch: tuple[Tensor, Tensor, float]) -> Tensor:
        import torch

        from dist_train.strategies.stages.pipeline_module import once_per_stage

        x, y, weight = batch
        loss = once_per_stage(self._wrapped, lambda: _loss(self._wrapped, x, y) * weight)
        self.total += 0.0 if loss is None else float(loss.detach())
        return torch.zeros(()) if loss is None else loss

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]


def _loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """The sum over the samples of each one's mean."""
    loss: Tensor = (model(inputs) - targets).pow(2).mean(dim=1).sum()
    return loss


def _model(seed: int) -> Any:
    """Two layers in a list, a gated one, the outer ones tied, and one parameter that is not trained."""
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(6, 6)
            self.layers = torch.nn.ModuleList(
                [
                    torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 6)),
                    torch.nn.Sequential(torch.nn.LayerNorm(6), torch.nn.Linear(6, 6)),
                ]
            )
            self.gated = torch.nn.Linear(6, 24)
            self.down = torch.nn.Linear(12, 6)
            self.last = torch.nn.Linear(6, 6)
            self.last.weight = self.first.weight
            self.fixed = torch.nn.Parameter(torch.randn(6), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            for layer in self.layers:
                x = x + layer(x)
            out: Tensor = self.last(self.mix(x)) * self.fixed
            return out

        def mix(self, x: Tensor) -> Tensor:
            gate, value = self.gated(x).chunk(2, dim=-1)
            return x + cast("Tensor", self.down(torch.tanh(gate) * value))

        def tensor_parallel_plan(self) -> dict[str, str]:
            return {"gated": "fused_colwise:2", "down": "rowwise"}

        def pipeline_layers(self) -> list[Any]:
            def residual(layer: Any) -> Any:
                return lambda x: x + layer(x)

            inner = [(residual(layer), (f"layers.{i}",)) for i, layer in enumerate(self.layers)]
            mixed = (self.mix, ("gated", "down"))
            return [self.first, *inner, mixed, (lambda x: self.last(x) * self.fixed, ("last", "fixed"))]

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Model().double()


def _batch(step: int) -> tuple[Tensor, Tensor]:
    import torch

    generator = torch.Generator().manual_seed(1000 + step)
    shape = (_BATCHES[step % len(_BATCHES)], 6)
    inputs = torch.randn(shape, dtype=torch.float64, generator=generator)
    return inputs, torch.randn(shape, dtype=torch.float64, generator=generator) * 4
