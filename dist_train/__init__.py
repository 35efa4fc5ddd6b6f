"""dist-train: the same PyTorch job on this machine, on Slurm and on Kubernetes; never silently wrong.

Importing this package loads no torch: public names and packages are imported on first use.

config          load and check a YAML config
cli             the `dist-train` command; __main__ has it run by `python -m dist_train`
prewarm         import torch for the agents while the command line still plans
jobs            what a launcher needs: job spec, plan, state, machine
agent           the per-node process: start ranks, watch them, restart them
entrypoint      what a rank of a config run executes
distributed     process groups, devices, facts that ranks agree on
strategies      single, ddp, dp, split, fsdp, hsdp, tensor_parallel, fsdp_tensor_parallel, pipeline
data            loader, sampler, permutation
checkpoint      atomic, verified, resumable checkpoints
resilience      dt.init, stop flag, hang watchdog, fault injection
trainer         the training loop of a config run
inference       prediction with a trained model
observability   metric sinks
rundir          the files of a run directory
datasets, models, testing   small data sets and models; test tools
errors, env, registry, near_names, lazy_exports   used by all of the above
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_train.lazy_exports import lazy_exports

__version__ = "0.1.0"

# Public name -> the module that defines it; tests/architecture/python_surface.json freezes them.
_PUBLIC = {
    "init": "dist_train.resilience.session",
    "Run": "dist_train.distributed.run",
    "prepare": "dist_train.strategies.prepare",
    "unwrap": "dist_train.strategies.unwrap",
    "checkpoint_activations": "dist_train.strategies.blocks.activation_checkpointing",
    "forward_backward": "dist_train.strategies.forward_backward",
    "no_sync": "dist_train.strategies.prepared_models",
    "clip_grad_norm_": "dist_train.strategies.prepared_models",
    "LossScaler": "dist_train.trainer.half_precision.loss_scaler",
    "to_device": "dist_train.distributed.transfer",
    "loader": "dist_train.data.loader",
    "Predictor": "dist_train.inference.predictor",
}
_PACKAGES = frozenset(
    [
        "errors",
        "env",
        "registry",
        "rundir",
        "config",
        "jobs",
        "cli",
        "agent",
        "entrypoint",
        "distributed",
        "strategies",
        "data",
        "checkpoint",
        "resilience",
        "trainer",
        "inference",
        "observability",
        "datasets",
        "models",
        "testing",
    ]
)

if TYPE_CHECKING:
    from dist_train.data.loader import loader as loader
    from dist_train.distributed.run import Run as Run
    from dist_train.distributed.transfer import to_device as to_device
    from dist_train.inference.predictor import Predictor as Predictor
    from dist_train.resilience.session import init as init
    from dist_train.strategies.blocks.activation_checkpointing import (
        checkpoint_activations as checkpoint_activations,
    )
    from dist_train.strategies.forward_backward import forward_backward as forward_backward
    from dist_train.strategies.prepare import prepare as prepare
    from dist_train.strategies.prepared_models import clip_grad_norm_ as clip_grad_norm_
    from dist_train.strategies.prepared_models import no_sync as no_sync
    from dist_train.strategies.unwrap import unwrap as unwrap
    from dist_train.trainer.half_precision.loss_scaler import LossScaler as LossScaler

__all__ = [
    "LossScaler",
    "Predictor",
    "Run",
    "__version__",
    "checkpoint_activations",
    "clip_grad_norm_",
    "forward_backward",
    "init",
    "loader",
    "no_sync",
    "prepare",
    "to_device",
    "unwrap",
]

__getattr__, __dir__ = lazy_exports(__name__, _PUBLIC, submodules=_PACKAGES)
