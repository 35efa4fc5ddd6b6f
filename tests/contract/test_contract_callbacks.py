"""Every callback that the registry finds keeps the contract, and one that breaks it is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dist_train import registry
from dist_train.testing import check_callback
from dist_train.trainer import Callback, CallbackContext
from dist_train.trainer.callbacks.early_stopping import EarlyStopping
from dist_train.trainer.callbacks.ema import EMA

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]
# With arguments that make each act within a few steps.
FACTORIES: dict[str, Callable[[], Callback]] = {
    "early_stopping": lambda: EarlyStopping(patience=2, min_delta=10.0),
    "ema": lambda: EMA(decay=0.5, every_steps=2),
}


class DoublesTheRate(Callback):
    """Somebody else's: acts on a count that it does not save."""

    def __init__(self) -> None:
        self._steps = 0

    def on_step_end(self, context: CallbackContext) -> None:
        self._steps += 1
        if self._steps == 7:
            context.optimizer.param_groups[0]["lr"] *= 2


@pytest.mark.parametrize("name", registry.names("callbacks"))
def test_callback(name: str) -> None:
    check_callback(FACTORIES[name])


def test_a_callback_that_does_not_save_its_state_is_found() -> None:
    with pytest.raises(AssertionError, match="DoublesTheRate: weights_hash of a resumed run is"):
        check_callback(DoublesTheRate)
