"""Before the first training step: do the ranks of a tensor group compute what one rank would?

They compute every sample together: with unlike samples or random numbers, or a plan that cuts a fused weight
as one layer, results would be wrong and nothing would fail. So the first forward pass that trains compares
inputs and outputs over the group, and runs once more with whole layers, gathered one by one, without dropout.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dist_train.distributed.parameter_shards import exchange_device
from dist_train.errors import UsageError
from dist_train.strategies.alike_tensors import are_alike, tensors_inside
from dist_train.strategies.tensor_cut.layer_hooks import LayerMode
from dist_train.strategies.tensor_cut.tensor_group import TensorGroup
from dist_train.strategies.tensor_cut.whole_gradients import WholeGradients
from dist_train.strategies.tensor_cut.whole_layers import compare_with_whole_layers
from dist_train.strategies.warmup import trained_tensors

_INPUTS = (
    "the ranks of a tensor group have unlike inputs in the first training step",
    "they compute every sample together, and must read the same ones",
    "read the data with dt.loader, or by run.place.data_rank and run.place.data_size in place of run.rank "
    "and run.world_size",
)
_OUTPUTS = (
    "the ranks of a tensor group have unlike outputs from equal inputs in the first training step",
    "random numbers of their own (a seed by rank in place of one by run.place.data_rank, with dropout), or a "
    "plan that cuts a layer whose outputs nothing joins again",
    "seed by dt.init(seed=...); each colwise layer of the plan is followed by a rowwise one, a last layer is "
    "colwise_gathered",
)


def check_first_forward(model: nn.Module, group: TensorGroup, mode: LayerMode) -> None:
    """Compare inputs, results and outputs of the first forward pass that trains (collective in the group).

    Then the gradients of whole parameters, where the first backward pass has them.
    """
    _FirstForward(group, mode).watch(model)
    mode.gradients = WholeGradients(model, group)


class _FirstForward:
    def __init__(self, group: TensorGroup, mode: LayerMode) -> None:
        self._group, self._mode = group, mode
        self._handles: list[Any] = []
        self._began = False

    def watch(self, model: nn.Module) -> None:
        self._handles = [
            model.register_forward_pre_hook(self._before, with_kwargs=True),
            model.register_forward_hook(self._after),
        ]

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.is_grad_enabled():
            self._began = True
            self._compare(tensors_inside([list(args), dict(kwargs)]), _INPUTS)
            self._compare_with_whole_layers(module, args, kwargs)

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        if not self._began:
            return
        for handle in self._handles:
            handle.remove()
        self._compare(trained_tensors(output), _OUTPUTS)

    def _compare_with_whole_layers(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        found = compare_with_whole_layers(module, args, kwargs, self._group, self._mode)
        if found is not None:
            raise UsageError(
                f"the plan does not compute what {type(module).__name__} computes whole: in the first "
                f"training step {found.where} is {found.error:.0%} of its size away from it on this rank",
                cause="several fused layers (query, key and value) that are cut as one, or something between "
                "a colwise and a rowwise layer that needs all features (a norm, a softmax)",
                hint="'fused_colwise:3' cuts each of three fused layers by itself; leave layers out of the "
                "plan whose features are needed together",
            )

    def _compare(self, tensors: list[Tensor], said: tuple[str, str, str]) -> None:
        device = exchange_device(torch.device("cpu"))
        if not are_alike(tensors, self._group.group, device):
            raise UsageError(said[0], cause=said[1], hint=said[2])
