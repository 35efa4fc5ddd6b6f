"""The user's module as one rank of a pipeline has it: its call runs the layers of one stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from dist_train.errors import UsageError
from dist_train.strategies.stages.stage_passes import OutputElsewhere, Pipeline, StagePass

T = TypeVar("T")


class PipelineModule(nn.Module):
    """Mixed into the class of the user's module, which keeps its names and its place in the program."""

    _dist_train_pipeline: Pipeline

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run this stage."""
        return self._dist_train_pipeline.call(args, kwargs)


def make_pipeline_module(model: nn.Module, pipeline: Pipeline) -> None:
    """Give a module the class of a pipeline's, in place."""
    plain = type(model)
    model.__class__ = type(f"Pipeline{plain.__name__}", (PipelineModule, plain), {})
    # Not by nn.Module's own __setattr__, though it would do the same: nothing of it is a submodule.
    object.__setattr__(model, "_dist_train_pipeline", pipeline)


def pipeline_of(module: nn.Module) -> Pipeline | None:
    """The pipeline of a module; None for one of another strategy."""
    return module._dist_train_pipeline if isinstance(module, PipelineModule) else None


def once_per_stage(module: nn.Module, compute: Callable[[], T]) -> T | None:
    """Call what calls a module, as a task's loss does; None on a stage that does not know the output.

    Raises:
        UsageError: it did not call the module of a pipeline once.
    """
    pipeline = pipeline_of(module)
    if pipeline is None:
        return compute()
    if pipeline.current is not None:
        return _checked(pipeline.current, compute)
    with pipeline.one_pass() as current:
        return _checked(current, compute)


def _checked(current: StagePass, compute: Callable[[], T]) -> T | None:
    try:
        value = compute()
    except OutputElsewhere:
        return None
    if current.calls != 1:
        raise UsageError(
            "the loss does not call its model, which it must do once in a pipeline",
            cause="a call of a part of it, or of dt.unwrap(model), computes nothing of the other stages",
            hint="call model(...) itself, once",
        )
    return value
