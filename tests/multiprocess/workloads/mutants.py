"""The models of the workloads; with MUTANT set, importing this breaks one mechanism of exact resume.

A test of equal bits that passes with a mutant proves nothing.
"""

from __future__ import annotations

import os
import time
from typing import Any

from torch import Tensor

from dist_train.models.convnet import ConvNet
from dist_train.models.transformer import ByteTransformer

convnet = ConvNet
transformer = ByteTransformer
# Of PacedTransformer, in each forward pass.
PACE_S = 0.02


class PacedTransformer(ByteTransformer):
    """The same with a wait in each step: a run that only lasts until it is stopped needs no core."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next bytes, after the wait."""
        time.sleep(PACE_S)
        return super().forward(tokens)


paced_transformer = PacedTransformer


def _no_warm_up() -> None:
    import dist_train.trainer.build as build

    build.warm_up = lambda *args, **kwargs: False


def _rng_state_before_the_iterator() -> None:
    """iter(DataLoader) draws from the global generator, after its state was restored from the checkpoint."""
    from dist_train.data.reading.torch_loader import TorchLoader

    TorchLoader._generator = lambda self, epoch: None  # type: ignore[method-assign,assignment,return-value]


def _position_of_the_sampler() -> None:
    """The position counts two prefetched batches of each of two workers."""
    from dist_train.data.exact_loader import ExactLoader

    trained = ExactLoader.state_dict

    def handed_out(self: ExactLoader) -> dict[str, Any]:
        state = trained(self)
        ahead = min(state["samples_in_epoch"] + 4 * self.batch_size, self.n)
        return {**state, "samples_in_epoch": ahead if ahead < self.n else state["samples_in_epoch"]}

    ExactLoader.state_dict = handed_out  # type: ignore[method-assign]


_MUTANTS = {
    "no_warm_up": _no_warm_up,
    "rng_state_before_the_iterator": _rng_state_before_the_iterator,
    "position_of_the_sampler": _position_of_the_sampler,
}
if os.environ.get("MUTANT"):
    _MUTANTS[os.environ["MUTANT"]]()
