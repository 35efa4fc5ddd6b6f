"""What an evaluation needs of prepared models: one exchange of buffers, and equally many forward passes.

DDP brings rank 0's buffers (BatchNorm's statistics) to all ranks in a forward pass. In an evaluation the
ranks may have unlike numbers of forward passes, also none: those with more would wait for ranks that are
done, or meet an exchange of theirs that means something else. All ranks begin a loop over an evaluation
loader together, so the buffers are exchanged there; passes without gradients need none until the model is
trained again.

A model whose parameters are spread over ranks gathers them in each of its calls. An evaluation in which some
ranks would not call it is refused.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dist_train.distributed.control_group import JsonValue
from dist_train.distributed.keyed_exchange import KeyedExchange
from dist_train.distributed.parameter_shards import plain_class
from dist_train.errors import UsageError


class EvaluationBuffers:
    """The prepared DDP models of a run; which of them have had their buffers exchanged for an evaluation.

    Args:
        exchange: of the run; None with one process.
    """

    def __init__(self, exchange: KeyedExchange | None = None) -> None:
        self._agreement = exchange
        self._prepared = 0
        self._models: weakref.WeakValueDictionary[int, DistributedDataParallel] = (
            weakref.WeakValueDictionary()
        )
        # Exchanged, and not trained since -> whether its next forward pass would have exchanged them.
        self._exchanged: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()
        self._evaluations = 0
        self._spread: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def track_spread(self, model: nn.Module) -> None:
        """Refuse evaluations in which the ranks would call this model unequally often."""
        self._spread.add(model)

    def track(self, ddp: DistributedDataParallel) -> None:
        """Exchange this model's buffers at the start of each evaluation; on all ranks in the same order."""
        self._models[self._prepared] = ddp
        self._prepared += 1

    @contextmanager
    def evaluation(self, equally_often: bool = True) -> Iterator[None]:
        """One loop over an evaluation loader; its start is collective.

        Args:
            equally_often: every rank has as many batches.

        Raises:
            UsageError: they have not, and a model is there that all ranks must call together.
        """
        if self._spread and not equally_often:
            raise _unequally_often(next(iter(self._spread)))
        self._exchange()
        self._evaluations += 1
        try:
            yield
        finally:
            self._evaluations -= 1

    def before_forward(self, ddp: DistributedDataParallel) -> None:
        """Let this forward pass exchange buffers, or not."""
        if ddp not in self._exchanged:
            return
        trains = torch.is_grad_enabled() and (ddp.training or not self._evaluations)
        # As if there had been no evaluation: after one torch itself leaves out the first pass's exchange.
        ddp.require_forward_param_sync = self._exchanged.pop(ddp) if trains else False

    def _exchange(self) -> None:
        for ddp in self._alive_everywhere():
            if ddp.broadcast_buffers and any(True for _ in ddp.module.buffers()):
                self._exchanged.setdefault(ddp, ddp.require_forward_param_sync)
                # What its forward pass calls: it knows buffers to ignore, and a hook of the user's.
                cast("Any", ddp)._sync_buffers()

    def _alive_everywhere(self) -> list[DistributedDataParallel]:
        """The models that all ranks still have: the collector frees dropped ones at unlike times."""
        models = dict(sorted(self._models.items()))
        if self._agreement is None or not self._prepared:
            return list(models.values())
        common = self._agreement.exchange(
            "evaluation buffers", list(models), _in_all, "a loop over an evaluation loader"
        )
        return [models[number] for number in cast("list[int]", common)]


def _in_all(alive: list[JsonValue]) -> JsonValue:
    """The numbers that every rank has."""
    common: list[JsonValue] = []
    common += sorted(set.intersection(*(set(cast("list[int]", numbers)) for numbers in alive)))
    return common


def _unequally_often(model: nn.Module) -> UsageError:
    return UsageError(
        f"an evaluation of fewer samples than ranks, with a {plain_class(model).__name__} that is spread "
        "over them",
        cause="each call of the model gathers its parameters from all ranks, and a rank without a sample "
        "would not call it: the others would wait for it until their time-out",
        hint="evaluate at least as many samples, or give each rank a batch, of which count says how much is "
        "its own:\n"
        "         for micro in dt.loader(data, batch_size, shuffle=False).micro_batches(): …; "
        "run.mean(loss_sum, count=micro.count)",
    )
