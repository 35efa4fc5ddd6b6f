"""Put this rank's parts in the place of a model's parameters, as DTensors.

Every parameter becomes one, those too that each rank has whole (Replicate): norms, optimizers (foreach and
fused ones) and checkpoints then see one kind of parameter on one mesh, and torch's own clip_grad_norm_ counts
each element once. Fused layers are torch's strided shards: rank r has the r-th rows of each of them.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from dist_train.strategies.tensor_cut.layer_hooks import LayerMode, OwnParts, Slot, hook_layer
from dist_train.strategies.tensor_cut.parameter_cuts import ParameterCut
from dist_train.strategies.tensor_cut.tensor_group import TensorGroup
from dist_train.strategies.tensor_cut.tensor_plan import CutPlan


class ModelCutter:
    """Cuts a model, or one unit of it after the other.

    Args:
        plan: of the whole model.
        mesh: of this rank's tensor group, one dimension.
        device: where the parts go.

    Attributes:
        mode: of all its layers.
    """

    def __init__(self, plan: CutPlan, mesh: DeviceMesh, device: torch.device) -> None:
        self._plan, self._mesh, self._device = plan, mesh, device
        self._group = TensorGroup(mesh.get_local_rank(), plan.size, mesh.get_group())
        self.mode = LayerMode()
        self._made: dict[int, nn.Parameter] = {}
        self._done: set[int] = set()

    @property
    def group(self) -> TensorGroup:
        """This rank's tensor group."""
        return self._group

    def cut(self, module: nn.Module) -> None:
        """Cut what of this module is not cut yet; tied parameters stay one."""
        whole: list[Slot] = []
        layers = {id(layer.module): layer for layer in self._plan.layers}
        for owner in [inner for inner in module.modules() if id(inner) not in self._done]:
            self._done.add(id(owner))
            cut: list[Slot] = []
            for name, parameter in owner._parameters.items():
                if parameter is None:
                    continue
                (cut if id(parameter) in self._plan.cuts else whole).append((owner, name))
            # By attribute, and not in a dict: torch's RNN layers keep a list of their parameters beside it.
            for name, parameter in list(owner._parameters.items()):
                if parameter is not None:
                    setattr(owner, name, self._parted(parameter))
            if id(owner) in layers:
                OwnParts(cut, self.mode).watch(owner)
                hook_layer(layers[id(owner)], self._group, self.mode)
        OwnParts(whole, self.mode).watch(module)

    def _parted(self, parameter: nn.Parameter) -> nn.Parameter:
        if id(parameter) not in self._made:
            cut = self._plan.cuts.get(id(parameter))
            value = parameter.detach()
            own = value.clone() if cut is None else cut.part(value, self._group.rank, self._group.size)
            spread = DTensor.from_local(
                own.to(self._device),
                self._mesh,
                [placement_of(cut)],
                run_check=False,
                shape=value.shape,
                stride=_stride(value, cut),
            )
            self._made[id(parameter)] = nn.Parameter(spread, requires_grad=parameter.requires_grad)
        return self._made[id(parameter)]


def placement_of(cut: ParameterCut | None) -> Placement:
    """Say in torch's words how a parameter is spread over a tensor group."""
    if cut is None:
        return Replicate()
    if cut.parts == 1:
        return Shard(cut.dim)
    return cast("Placement", _StridedShard(cut.dim, split_factor=cut.parts))


def _stride(value: Tensor, cut: ParameterCut | None) -> tuple[int, ...]:
    return value.stride() if cut is None else torch.empty(value.shape, device="meta").stride()
