"""Strategy `dp`: one process drives several GPUs by torch's DataParallel, for code written for it."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext

import torch
from pydantic import Field
from torch import nn

from dist_train.distributed.run import Run
from dist_train.errors import ConfigError
from dist_train.strategies.base import StrategyOptions
from dist_train.strategies.rank_memory import RankMemory, whole_model_memory
from dist_train.strategies.torch_data_parallel import BalancedDataParallel
from dist_train.strategies.unwrap import unwrap

logger = logging.getLogger(__name__)


class DpOptions(StrategyOptions):
    """DataParallel's options of the same names, and a smaller batch for the first device."""

    device_ids: tuple[int, ...] | None = Field(
        None, min_length=1, description="GPUs as this process numbers them; None: all that it sees"
    )
    output_device: int | None = Field(None, description="where outputs are put together; None: the first")
    first_device_batch: int | None = Field(
        None, ge=1, description="fewer samples for the first device, which also holds outputs and optimizer"
    )


class Dp:
    """Only for one rank: each forward pass copies the model to every GPU and cuts the batch."""

    name = "dp"
    Options: type[StrategyOptions] = DpOptions
    averages = False
    one_process = True

    def wrap(self, model: nn.Module, run: Run, options: StrategyOptions) -> nn.Module:
        if not isinstance(options, DpOptions):
            raise TypeError(f"dp takes DpOptions, not {type(options).__name__}")
        if run.world_size != 1:
            raise _too_many_ranks(run)
        if run.device.type != "cuda":
            logger.warning("strategy dp: no GPU, so the model runs as it is, on %s", run.device.type)
            return model
        ids = device_ids(options, run.device.index or 0, torch.cuda.device_count())
        if len(ids) == 1:
            logger.warning(
                "strategy dp: only cuda:%d is used, so the model runs as it is; "
                "`--gpus-per-node 1 --gpus 0,1` shows two GPUs to one process",
                ids[0],
            )
            return model
        logger.warning(advice(len(ids)))
        devices = [torch.device("cuda", index) for index in ids]
        out = devices[0] if options.output_device is None else torch.device("cuda", options.output_device)
        return BalancedDataParallel(model, devices, out, options.first_device_batch)

    def memory(
        self, options: StrategyOptions, model: nn.Module, world_size: int, accumulate: int
    ) -> list[RankMemory]:
        """The whole model: as of one GPU."""
        note = "of dp with one GPU: with several the first holds all of this but some activations"
        return [whole_model_memory(model, notes=(note,))]

    def candidates(self, world_size: int) -> list[dict[str, object]]:
        """None: ddp takes as much memory on each GPU, and is faster."""
        return []

    def unwrap(self, module: nn.Module) -> nn.Module:
        return unwrap(module)

    def no_sync(self, module: nn.Module) -> AbstractContextManager[None]:
        return nullcontext()

    def clip_norm(self, module: nn.Module, max_norm: float) -> torch.Tensor:
        return torch.nn.utils.clip_grad_norm_(module.parameters(), max_norm)


def device_ids(options: DpOptions, own: int, visible: int) -> tuple[int, ...]:
    """The GPUs that the options name; raises ConfigError for one that does not exist.

    Args:
        own: index of this process's device: batches come to it, so it is the first.
        visible: how many GPUs this process sees.
    """
    ids = tuple(range(visible)) if options.device_ids is None else options.device_ids
    named = [*ids, *([] if options.output_device is None else [options.output_device])]
    for index in named:
        if not 0 <= index < visible:
            raise ConfigError(
                f"strategy dp: there is no cuda:{index}, {visible} GPU(s) are visible",
                cause="they are renumbered from 0 within --gpus and CUDA_VISIBLE_DEVICES",
                hint=f"use 0 to {visible - 1}; `dist-train devices` lists what the machine has",
            )
    if len(set(ids)) != len(ids):
        raise ConfigError(f"strategy dp: device_ids {list(ids)} names a GPU twice")
    if ids[0] != own:
        raise ConfigError(
            f"strategy dp: device_ids begins with {ids[0]}, and this process computes on cuda:{own}",
            cause="parameters and batches lie on the first device",
            hint=f"begin with {own}; --gpus 3,0 decides which GPU is cuda:0",
        )
    return ids


def advice(devices: int) -> str:
    """The log line that recommends ddp."""
    return (
        f"strategy dp: one process drives {devices} GPUs and copies the model to them in every step; "
        f"strategy ddp with --gpus-per-node {devices} does not, and uses them evenly"
    )


def _too_many_ranks(run: Run) -> ConfigError:
    here = ",".join(str(index) for index in range(max(2, run.info.local_world_size)))
    return ConfigError(
        f"strategy 'dp' cannot train on {run.world_size} ranks",
        cause="it is one process that drives several GPUs: each rank would train a model of its own",
        hint=f"use strategy 'ddp', or start one process: --nodes 1 --gpus-per-node 1 --gpus {here}",
    )


STRATEGY = Dp()
