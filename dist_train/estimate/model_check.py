"""`python -P -m dist_train.estimate.model_check`: does the config's model fit its strategy?

It builds the model without values and asks the strategy what ranks hold of it. Where layers are cut, it gives
the model the shapes of one rank, and runs the task's loss and its backward pass on a sample without values.
The command line starts it as a process of its own, which reads one JSON object from stdin and prints one.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from torch import nn

from dist_train.config.load import load_text
from dist_train.config.schema import RunConfig
from dist_train.errors import ConfigError, DistTrainError, ExitCode
from dist_train.estimate.activation_memory import activation_memory
from dist_train.estimate.child_answer import answer_by
from dist_train.estimate.optimizer_check import refuse_optimizer
from dist_train.estimate.sample_batch import SampleBatches
from dist_train.estimate.shape_model import make_shape_model
from dist_train.strategies.base import Strategy, runs_steps
from dist_train.strategies.rank_memory import as_on_a_rank, computes_with_parts, memory_of
from dist_train.strategies.strategy_fit import FittedStrategy, fit_strategy
from dist_train.strategies.tensor_cut.tensor_plan import compiled_is_refused
from dist_train.trainer.build_components import make_task
from dist_train.trainer.pretrained import unstarted

# One sample may hide a dimension: [1, n] broadcasts.
_SAMPLES = 2


def respond(asked: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return exit code and answer: the mesh, and why something could not be checked; or what is wrong.

    Args:
        asked: `config` (text), `world_size`, `device` (`cpu`, `cuda` or None), `accumulate` (micro-batches of
            a step), `forward`: whether to run the loss too, which reads the training data.
    """
    try:
        config = unstarted(load_text(asked["config"], "config.yaml").config)
        chosen = config.strategy
        fitted = fit_strategy(
            chosen.name, chosen.options, asked["world_size"], asked["device"], asked["accumulate"]
        )
        unchecked = check_model(config, fitted, asked["world_size"], asked["forward"])
    except DistTrainError as error:
        if error.exit_code == ExitCode.INTERNAL:
            raise
        return int(error.exit_code), {"what": error.what, "cause": error.cause, "hint": error.hint}
    return 0, {"mesh": fitted.place.mesh, "unchecked": unchecked}


def check_model(config: RunConfig, fitted: FittedStrategy, world_size: int, forward: bool) -> str | None:
    """Check that the model fits its strategy; return why that is not known here, or None.

    Raises:
        ConfigError: it does not.
    """
    if config.trainer.compile is not None and _does_passes_itself(fitted.strategy):
        raise compiled_is_refused(fitted.strategy.name)
    try:
        model = make_shape_model(config).model
    except Exception as error:  # of the user's own code: what it needs may only be where the ranks run
        return f"the model cannot be built here: {_said(error)}"
    memory_of(fitted.strategy, fitted.options, model, world_size, config.trainer.accumulate)
    refuse_optimizer(config, fitted, model)
    if not forward or not computes_with_parts(fitted.strategy):
        return None
    try:
        batch = SampleBatches(config).of_size(_SAMPLES)
        _run(config, model, batch)
    except Exception as error:  # the whole model needs values, or the data is not here
        return f"its loss cannot be computed without values: {_said(error)}"
    with as_on_a_rank(fitted.strategy, fitted.options, model, world_size):
        try:
            _run(config, model, batch)
        except Exception as error:  # whatever the layers say of shapes that do not fit together
            raise ConfigError(
                f"strategy {fitted.strategy.name}: the plan does not fit {type(model).__name__}, whose loss "
                "cannot be computed with the parts of one rank",
                cause=_said(error),
                hint="each colwise layer is followed by a rowwise one; between them the model must take the "
                "number of features or heads from its tensors (view(..., -1, head_dim)); fused layers are "
                "fused_colwise:N",
            ) from None
    return None


def _does_passes_itself(strategy: Strategy) -> bool:
    return computes_with_parts(strategy) or runs_steps(strategy)


def _run(config: RunConfig, model: nn.Module, batch: Any) -> None:
    activation_memory(
        model, make_task(config), batch, autocast=False, compute_dtype=None, fused_attention=False
    )


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


if __name__ == "__main__":
    sys.exit(answer_by(respond))
