"""What the samples of a training step follow from, where the order of the data is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dist_train.reports.config_values import read_config
from dist_train.reports.data_identity import read_data_identity
from dist_train.rundir import RunDir

# Strategies whose ranks each have data of their own; in the others a mesh says who shares it.
_DATA_BY_RANK = ("single", "ddp", "fsdp", "hsdp", "split")


@dataclass(frozen=True)
class StepRequest:
    """A step whose samples can be computed.

    Args:
        asked: what `python -m dist_train.data` reads.
        epoch: of the step, from 0.
        by_rank: whether it is known which rank has which of them.
    """

    asked: Mapping[str, Any]
    epoch: int
    by_rank: bool


def step_request(run: RunDir, job: Mapping[str, Any], step: int) -> StepRequest | str:
    """For step 1, 2, … of the trainer; as text why it cannot be known."""
    spec = job.get("spec", {})
    if spec.get("target", {}).get("kind") != "config":
        return "only for a config: what a script counts as a step is its own"
    identity = read_data_identity(run)
    if identity is None:
        return "no checkpoint is there, which would say what data it reads"
    if not identity.permuted:
        return "shards or a sampler have an order of their own"
    try:
        config = {value.path: value.value for value in read_config(run)}
    except (OSError, ValueError) as error:
        return f"config.yaml cannot be read: {error}"
    strategy = config.get("strategy", config.get("strategy.name"))
    by_rank = strategy in _DATA_BY_RANK
    per_epoch = identity.steps_per_epoch(config.get("data.drop_last") is True)
    epoch, of_epoch = divmod(step - 1, max(1, per_epoch))
    ranks = int(spec.get("nodes", 1)) * int(spec.get("procs_per_node", 1))
    order = {key: value for key, value in asdict(identity).items() if key not in ("fingerprint", "permuted")}
    return StepRequest(
        {**order, "world_size": ranks if by_rank else 1, "epoch": epoch, "step": of_epoch}, epoch, by_rank
    )
