"""One exchange of buffers per evaluation, in place of one in the forward passes of prepared DDP models.

DDP brings rank 0's buffers (BatchNorm's statistics) to all ranks in a forward pass. In an evaluation the
ranks may have unlike numbers of forward passes, also none: those with more would wait for ranks that are
done, or meet an exchange of theirs that means something else. All ranks begin a loop over an evaluation
loader together, so the buffers are exchanged there; passes without gradients need none until the model is
trained again.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class EvaluationBuffers:
    """The prepared DDP models of a run; which of them have had their buffers exchanged for an evaluation."""

    def __init__(self) -> None:
        self._models: list[weakref.ref[DistributedDataParallel]] = []
        # Exchanged, and not trained since -> whether its next forward pass would have exchanged them.
        self._exchanged: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()
        self._evaluations = 0

    def track(self, ddp: DistributedDataParallel) -> None:
        """Exchange this model's buffers at the start of each evaluation; on all ranks in the same order."""
        self._models.append(weakref.ref(ddp))

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """One loop over an evaluation loader; its start is collective."""
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
        self._models = [ref for ref in self._models if ref() is not None]
        for ddp in filter(None, [ref() for ref in self._models]):
            if ddp.broadcast_buffers and any(True for _ in ddp.module.buffers()):
                self._exchanged.setdefault(ddp, ddp.require_forward_param_sync)
                # What its forward pass calls: it knows buffers to ignore, and a hook of the user's.
                cast("Any", ddp)._sync_buffers()
