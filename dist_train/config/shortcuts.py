"""Short names of components: the target of a name without a colon, by config key."""

from __future__ import annotations

from collections.abc import Mapping

from dist_train import registry

# The key of the config (data.train and data.evaluation share "data") -> name -> target.
SHORTCUTS: Mapping[str, Mapping[str, str]] = {
    "model": {
        "convnet": "dist_train.models.convnet:ConvNet",
        "pretrained": "dist_train.trainer.pretrained:pretrained",
        "transformer": "dist_train.models.transformer:ByteTransformer",
    },
    "task": {},
    "data": {
        "digits": "dist_train.datasets.digits:Digits",
        "text": "dist_train.datasets.text:TextBytes",
    },
    "collate_fn": {},
    "loss": {
        "cross_entropy": "torch.nn.functional:cross_entropy",
        "mse": "torch.nn.functional:mse_loss",
    },
    "metrics": {
        "accuracy": "dist_train.trainer.metrics:accuracy",
        "top_k": "dist_train.trainer.metrics:top_k",
    },
    "optimizer": {
        "adam": "torch.optim:Adam",
        "adamw": "torch.optim:AdamW",
        "sgd": "torch.optim:SGD",
    },
    "schedule": {
        "constant": "dist_train.trainer.schedules:constant",
        "cosine": "dist_train.trainer.schedules:cosine",
        "linear": "dist_train.trainer.schedules:linear",
        "plateau": "dist_train.trainer.schedules:Plateau",
    },
}


def short_names(kind: str) -> Mapping[str, str]:
    """Short name -> target; callbacks are found by the registry, so that plug-ins may add some."""
    if kind in registry.KINDS:
        return {name: registry.target(kind, name) for name in registry.names(kind)}
    return SHORTCUTS[kind]
