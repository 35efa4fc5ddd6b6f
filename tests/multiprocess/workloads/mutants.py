"""The models of the workloads; with MUTANT set, one mechanism of exact resume is broken on import.

A test of the same bits that stays green under a mutant proves nothing.
"""

from __future__ import annotations

import os
from typing import Any

from dist_train.models.convnet import ConvNet
from dist_train.models.transformer import ByteTransformer

convnet = ConvNet
transformer = ByteTransformer


def _no_warm_up() -> None:
    import dist_train.trainer.build as build

    build.warm_up = lambda *args, **kwargs: False


def _random_streams_before_the_iterator() -> None:
    """iter(DataLoader) draws from the global stream, after the checkpoint's has been restored."""
    from dist_train.data.feed import Feed

    Feed._generator = lambda self, epoch: None  # type: ignore[method-assign,assignment,return-value]


def _position_of_the_sampler() -> None:
    """Two workers have been handed two batches each that nobody has trained on."""
    from dist_train.data.exact import ExactLoader

    trained = ExactLoader.state_dict

    def handed_out(self: ExactLoader) -> dict[str, Any]:
        state = trained(self)
        ahead = min(state["samples_in_epoch"] + 4 * self.batch_size, self.n)
        return {**state, "samples_in_epoch": ahead if ahead < self.n else state["samples_in_epoch"]}

    ExactLoader.state_dict = handed_out  # type: ignore[method-assign]


_MUTANTS = {
    "no_warm_up": _no_warm_up,
    "random_streams_before_the_iterator": _random_streams_before_the_iterator,
    "position_of_the_sampler": _position_of_the_sampler,
}
if os.environ.get("MUTANT"):
    _MUTANTS[os.environ["MUTANT"]]()
