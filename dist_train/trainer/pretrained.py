"""A model that begins with weights from a file; in a config it stands in place of the model itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from dist_train.checkpoint.weights.model_io import load_model
from dist_train.config.component import Component
from dist_train.config.schema import RunConfig
from dist_train.errors import ConfigError
from dist_train.trainer.component_factory import check_call, make, target_of


def pretrained(
    model: str, weights: str, args: Mapping[str, Any] | None = None, entry: str | None = None
) -> nn.Module:
    """Make the model and put the weights into it, as load_model does; a checkpoint of the run still wins.

        model:
          target: pretrained
          args:
            model: convnet
            args:
              width: 32
            weights: start.safetensors

    Args:
        model: `package.module:Name` or a short name, as `model:` takes it.
        weights: whatever `dt.checkpoint.load_model` opens, as every rank sees it; also at a resume.
        args: the model's own arguments.
        entry: which part of the file holds the weights, where several could.

    Raises:
        ConfigError: no such model; NotFoundError, CheckpointError: the weights.
    """
    made = make(Component(target=model, args=dict(args or {})), "model")
    if not isinstance(made, nn.Module):
        raise ConfigError(f"model.args.model: {model} made a {type(made).__name__}, not an nn.Module")
    load_model(weights, made, entry=entry)
    return made


def unstarted(config: RunConfig) -> RunConfig:
    """The config with the model alone, for a caller that loads other weights: the file may be gone."""
    target = target_of(config.model, "model")
    if target is not pretrained:
        return config
    check_call(target, config.model, "model", ())
    args = config.model.args
    model = Component(target=args["model"], args=dict(args.get("args") or {}))
    return config.model_copy(update={"model": model})
