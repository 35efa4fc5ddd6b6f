"""Short names for components: what a bare name without a colon stands for, by config key."""

from __future__ import annotations

from collections.abc import Mapping

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
    },
}
