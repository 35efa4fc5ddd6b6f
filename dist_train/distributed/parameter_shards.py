"""Parameters that are spread over ranks (DTensor): their own parts, gradients, and norm over all ranks.

torch.distributed.tensor takes half a second to import, and is not imported here: where nobody has, there is
no such parameter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import torch
import torch.distributed as torch_dist
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


# Of a parameter: how many ranks hold what this one holds of it.
Replicas = Callable[[nn.Parameter], float]


def is_sharded(tensor: object) -> TypeGuard[DTensor]:
    """Whether a tensor is a DTensor."""
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and isinstance(tensor, kind)


def own_part(tensor: Tensor) -> Tensor:
    """Return what this rank holds of a tensor: all of a plain one."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def number_of_parts(tensor: Tensor) -> int:
    """Return into how many different parts a tensor is cut; 1 for a plain one."""
    if not is_sharded(tensor):
        return 1
    parts = 1
    for dimension, placement in enumerate(tensor.placements):
        # Not is_shard(): torch's strided shards are none of its Shard.
        if not placement.is_replicate():
            parts *= tensor.device_mesh.size(dimension)
    return parts


def cuts_layers(tensor: Tensor) -> bool:
    """Whether a tensor is spread over a mesh whose ranks compute samples together (tensor parallelism)."""
    return is_sharded(tensor) and "tensor" in (tensor.device_mesh.mesh_dim_names or ())


def holds_one_stage(module: nn.Module) -> bool:
    """Whether a module's parameters are those of one stage of a pipeline, and others have no values here."""
    return hasattr(module, "_dist_train_pipeline")


def first_holder(module: nn.Module, buffer: str) -> int:
    """Return the lowest rank that computes with a buffer of this name: of a pipeline, one of its stage."""
    pipeline: Any = getattr(module, "_dist_train_pipeline", None)
    stages = () if pipeline is None else pipeline.cut.stages_of.get(buffer, ())
    return int(pipeline.mesh.rank_of(0, stages[0], 0)) if stages else 0


def sharded_modules(module: nn.Module) -> list[FSDPModule]:
    """Return the modules inside, itself included, that fully_shard has made units."""
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    if kind is None:
        return []
    # Of a pipeline, the layers of this rank's stage are the outermost unit: what is called, not the model.
    stage = getattr(module, "_dist_train_pipeline", None)
    inside = (*module.modules(), *([] if stage is None else [stage.layers]))
    return [part for part in inside if isinstance(part, kind)]


def plain_class(module: nn.Module) -> type:
    """Return a module's class as its program knows it: fully_shard and a pipeline put another there."""
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    own = type(module)
    changed = holds_one_stage(module) or (kind is not None and own.__bases__[0] is kind)
    return own.__bases__[1] if changed else own


def reshard(module: nn.Module) -> None:
    """Give every module its own part of each parameter again.

    After a forward pass without a backward pass some hold whole ones, whose changes would be lost.
    """
    for part in sharded_modules(module):
        part.reshard()


def reshard_without_backward(module: nn.Module) -> None:
    """Reshard a sharded module after each forward pass that no backward pass follows."""

    def after(module: nn.Module, args: Any, output: Any) -> None:
        if not torch.is_grad_enabled():
            reshard(module)

    module.register_forward_hook(after)


def accumulating_parameters(module: nn.Module) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """Return each trained parameter with the one to which a backward pass adds its gradient.

    They are the same but in a sharded module: there the gradient is that of the whole parameter, before it
    is reduced. Collective, then: each unit is gathered once, and freed again.
    """
    pairs: dict[int, tuple[nn.Parameter, nn.Parameter]] = {
        id(parameter): (parameter, parameter) for parameter in module.parameters()
    }
    for part in sharded_modules(module):
        owned = _slots(cast("nn.Module", part))
        before = [getattr(owner, name) for owner, name in owned]
        part.unshard()
        after = [getattr(owner, name) for owner, name in owned]
        part.reshard()
        for own, whole in zip(before, after, strict=True):
            if whole is not own:
                pairs[id(own)] = (own, whole)
    return [pair for pair in pairs.values() if pair[0].requires_grad]


def gradients_kept_apart(unit: FSDPModule) -> list[Tensor]:
    """Return a unit's whole gradients of earlier backward passes that are not in any `.grad`.

    Where gradients are reduced in another dtype than they are computed in, torch converts those of a backward
    pass without an exchange, and adds them up in a place of its own.
    """
    state: Any = unit._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # older versions of torch: one group in each unit
        groups = [group for group in [state._fsdp_param_group] if group is not None]
    found = [one.unsharded_accumulated_grad for group in groups for one in group.fsdp_params]
    return [gradient for gradient in found if gradient is not None]


def _slots(module: nn.Module) -> list[tuple[nn.Module, str]]:
    return [
        (owner, name)
        for owner in module.modules()
        for name, parameter in owner._parameters.items()
        if parameter is not None
    ]


@torch.no_grad()
def gradient_norm(parameters: Iterable[nn.Parameter], replicas: Replicas | None = None) -> Tensor:
    """The norm of all gradients over all ranks, float64, each element counted once (collective).

    torch's clip_grad_norm_ refuses parameters of unlike meshes, and counts what is replicated on some of them
    wrongly (https://github.com/pytorch/pytorch/issues/180346).

    Args:
        replicas: number of ranks of the job that hold what this rank holds of a parameter; None: all ranks
            hold a part of each.
    """
    trained = [parameter for parameter in parameters if parameter.grad is not None]
    shares = None if replicas is None else [1 / replicas(parameter) for parameter in trained]
    return norm_over_ranks([parameter.grad for parameter in trained if parameter.grad is not None], shares)


@torch.no_grad()
def norm_over_ranks(tensors: Sequence[Tensor], shares: Sequence[float] | None = None) -> Tensor:
    """The norm of all these tensors over all ranks, float64, each element counted once (collective).

    Args:
        shares: one over the number of ranks that hold the same of a tensor; None: all ranks hold a part.
    """
    world_size = torch_dist.get_world_size() if torch_dist.is_initialized() else 1
    if shares is None:
        # Replicas on the world, which a mesh of one dimension of it does not know.
        shares = [number_of_parts(tensor) / world_size for tensor in tensors]
    own = [own_part(tensor) for tensor in tensors]
    here = own[0].device if own else torch.device("cpu")
    total = torch.zeros((), dtype=torch.float64, device=exchange_device(here))
    for share, part in zip(shares, own, strict=True):
        norm = torch.linalg.vector_norm(part, dtype=torch.float64)
        total += norm.pow(2).to(total.device) * share
    if world_size > 1:
        torch_dist.all_reduce(total)
    return total.sqrt()


def exchange_device(otherwise: torch.device) -> torch.device:
    """Return where a number must lie that all ranks exchange: with NCCL on the GPU, wherever it is."""
    if torch_dist.is_initialized() and "nccl" in torch_dist.get_backend():
        return torch.device("cuda", torch.cuda.current_device())
    return otherwise


@torch.no_grad()
def clip_gradients(
    parameters: Iterable[nn.Parameter], max_norm: float, replicas: Replicas | None = None
) -> Tensor:
    """Scale all gradients to a norm over all ranks of at most max_norm; return it as it was (collective)."""
    trained = [parameter for parameter in parameters if parameter.grad is not None]
    norm = gradient_norm(trained, replicas)
    # As torch's clip_grad_norm_: always a product, so that the host does not wait for the device.
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for parameter in trained:
        assert parameter.grad is not None
        gradient = own_part(parameter.grad)
        gradient.mul_(factor.to(device=gradient.device, dtype=gradient.dtype))
    return norm
