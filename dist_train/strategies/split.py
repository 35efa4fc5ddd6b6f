"""Strategy `split`: each process lays the model's layers over several devices; ddp over several processes."""

from __future__ import annotations

import logging

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import nn

from dist_train.distributed.run import Run
from dist_train.errors import ConfigError
from dist_train.strategies.base import StrategyOptions
from dist_train.strategies.blocks.device_split import balanced, by_map, place
from dist_train.strategies.rank_memory import RankMemory, whole_model_memory
from dist_train.strategies.replicas.exchanged_model import ReplicaOptions, ReplicatedStrategy

logger = logging.getLogger(__name__)

# It names modules: whether it fits is known from the model alone, before ranks are started.
NEEDS_MODEL = ("map", "devices")


class SplitOptions(ReplicaOptions):
    """Which layer lies where, and the options of ddp."""

    devices: int | None = Field(
        None, ge=2, description="GPUs of each rank; None: as many as there are for each rank of the node"
    )
    map: dict[str, int] | None = Field(
        None,
        description="class or pattern of module names -> number of the device within the rank (0, 1, …); "
        "what it does not name lies on 0; None: the members of ModuleLists, balanced by bytes",
    )

    @field_validator("map")
    @classmethod
    def _devices_of_the_rank(
        cls, value: dict[str, int] | None, info: ValidationInfo
    ) -> dict[str, int] | None:
        devices = info.data.get("devices")
        for name, device in (value or {}).items():
            if device < 0 or (devices is not None and device >= devices):
                raise ValueError(f"'{name}' is on device {device}, and a rank has {devices or 'no such one'}")
        return value


class Split(ReplicatedStrategy):
    """Layers one after the other on several devices of one process: one of them computes at a time."""

    name = "split"
    Options: type[StrategyOptions] = SplitOptions
    # The model is laid out from where it was built: whole, it may not fit on one device.
    places_model = True
    works_alone = True

    def wrap(self, model: nn.Module, run: Run, options: StrategyOptions) -> nn.Module:
        if not isinstance(options, SplitOptions):
            raise TypeError(f"split takes SplitOptions, not {type(options).__name__}")
        devices = devices_of(options, run, torch.cuda.device_count())
        if options.map is None:
            placement = balanced(model, len(devices))
        else:
            placement = by_map(model, options.map, len(devices))
        place(model, placement, devices)
        if run.is_main:
            shown = ", ".join(
                f"{device} {size / 2**20:.1f} MiB"
                for device, size in zip(devices, placement.bytes_of_device, strict=True)
            )
            logger.info("split over %s; one device computes at a time", shown)
        return model if run.world_size == 1 else self.exchanged(model, run, options, None)

    def memory(
        self, options: StrategyOptions, model: nn.Module, world_size: int, accumulate: int
    ) -> list[RankMemory]:
        """The whole model, over all devices of the rank."""
        assert isinstance(options, SplitOptions)
        if options.map is not None:
            by_map(model, options.map, options.devices or max(options.map.values(), default=0) + 1)
        elif options.devices is not None:
            balanced(model, options.devices)
        return [
            whole_model_memory(model, whole_gradients=True, notes=("of split: over all GPUs of the rank",))
        ]

    def candidates(self, world_size: int) -> list[dict[str, object]]:
        """None: how many devices a rank has is not known, and fsdp uses them all at once."""
        return []


def devices_of(options: SplitOptions, run: Run, visible: int) -> list[torch.device]:
    """The devices of this rank, the one that its batches come to first.

    With R ranks on the node these are cuda:r, cuda:(r + R), cuda:(r + 2 R), …: the first is what ddp takes.

    Args:
        visible: GPUs that this process sees.

    Raises:
        ConfigError: they are not there.
    """
    if run.device.type != "cuda":
        if options.devices is None:
            raise ConfigError(
                "strategy split: there is no GPU, and `devices` is not given",
                hint="devices=2 tries it on the CPU, where all devices are the same",
            )
        logger.warning("strategy split: no GPU; its %d devices are all the CPU", options.devices)
        return [torch.device("cpu", index) for index in range(options.devices)]
    ranks, first = run.info.local_world_size, run.device.index or 0
    wanted = options.devices or visible // ranks
    if wanted < 2 or first + (wanted - 1) * ranks >= visible:
        raise ConfigError(
            f"strategy split: {visible} GPU(s) are visible for {ranks} rank(s) of this node"
            + (f" with {options.devices} each" if options.devices else ""),
            cause="each rank lays the model over at least two, and all ranks of a node must see all of them",
            hint="fewer ranks per node; strategy ddp or fsdp where the model fits on one GPU",
        )
    return [torch.device("cuda", first + step * ranks) for step in range(wanted)]


STRATEGY = Split()
