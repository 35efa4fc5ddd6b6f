"""Seconds of a step that a rank works by itself: they show the rank that all others wait for.

A fast rank waits for the slow ones inside the backward pass, so a step takes equally long on all ranks. The
wait for data and the model's own forward pass come before that collective and differ between ranks. (On CUDA
only the host's part of the forward pass is measured: nothing here waits for the device.)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch import nn


class OwnWork:
    """Adds up the seconds of the forward passes of one bare model.

    Args:
        model: without its wrapper, whose exchange before a forward pass is not the rank's own work.
    """

    def __init__(self, model: nn.Module, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = 0.0
        self._began: float | None = None
        model.register_forward_pre_hook(self._before)
        model.register_forward_hook(self._after, always_call=True)

    def take(self) -> float:
        """Seconds since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _before(self, module: nn.Module, inputs: Any) -> None:
        self._began = self._clock()

    def _after(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        began, self._began = self._began, None
        if began is not None and module.training:  # not an evaluation
            self._seconds += self._clock() - began
