"""Run one `dist-train predict`: a config's model with a checkpoint's weights, over inputs, into a file."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dist_train.checkpoint.weights.import_weights import choose_weights
from dist_train.checkpoint.weights.model_io import put_weights
from dist_train.config.load import load_config
from dist_train.inference.input_batches import Inputs, open_inputs
from dist_train.inference.prediction_errors import BatchFailed
from dist_train.inference.predictor import Predictor
from dist_train.inference.result_files import STDOUT, check_output, open_output
from dist_train.trainer.build_components import make_model
from dist_train.trainer.pretrained import unstarted
from dist_train.trainer.step import AUTOCAST

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prediction:
    """The options of one prediction.

    Args:
        config: the config of the model.
        weights: a checkpoint, a folder of them, or a weights file.
        inputs: `evaluation`, `train`, a file, FILE:KEY, or a folder.
        output: a new file, or `-`.
        devices: one worker each; None chooses.
        processes: the number of CPU workers instead.
        batch_size: samples per batch; None takes the config's.
        entry: which part of a weights file.
    """

    config: Path
    weights: Path
    inputs: str
    output: str
    devices: list[str] | None = None
    processes: int | None = None
    batch_size: int | None = None
    entry: str | None = None


class InPrecision:
    """The forward pass as the config's evaluation does it."""

    def __init__(self, precision: str) -> None:
        self.precision = precision

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        """model(batch), in autocast for bf16 and fp16."""
        if self.precision == "fp32":
            return model(batch)
        device = next((parameter.device.type for parameter in model.parameters()), "cpu")
        with torch.autocast(device, dtype=AUTOCAST[self.precision]):
            return model(batch)


def predict(options: Prediction) -> None:
    """Predict; after an error no output is left behind."""
    if options.output != STDOUT:
        check_output(Path(options.output))
    config = load_config(options.config).config
    model = make_model(unstarted(config))
    _load(options, model)
    inputs = open_inputs(options.inputs, config)
    began = time.monotonic()
    forward = InPrecision(config.trainer.precision)
    with Predictor(model, options.devices, processes=options.processes, forward=forward) as predictor:
        if options.devices is None and options.processes is None and predictor.devices == ("cpu",):
            logger.info("no GPU is visible: one process on the CPU (--processes N starts more)")
        places = ", ".join(predictor.devices)
        logger.info("%s samples of %s on %s", len(inputs), inputs.name, places)
        with open_output(options.output) as output:
            size = options.batch_size or config.data.batch_size
            try:
                for result, (targets, rows) in _results(predictor, inputs, size):
                    output.add(result, targets, rows)
            except BatchFailed as error:
                error.hint = error.hint or _dtype_hint(error, inputs, model)
                raise
    seconds = time.monotonic() - began
    logger.info("wrote %s: %s rows in %.1f s", options.output, len(inputs), seconds)


def _results(predictor: Predictor, inputs: Inputs, size: int) -> Iterator[tuple[Any, tuple[Any, int]]]:
    # Targets and sizes, which no worker gets, by the batch's number; never more than are in flight.
    unsent: dict[int, tuple[Any, int]] = {}

    def batches() -> Iterator[Any]:
        for number, (batch, targets) in enumerate(inputs.batches(size)):
            unsent[number] = (targets, min(size, len(inputs) - number * size))
            yield batch

    for number, result in zip(count(), predictor.predict(batches()), strict=False):
        yield result, unsent.pop(number)


def _dtype_hint(error: BatchFailed, inputs: Inputs, model: nn.Module) -> str | None:
    """Return a hint where a file's dtype is not the model's (NumPy's default is float64)."""
    theirs = getattr(inputs, "dtype", None)
    ours = next((p.dtype for p in model.parameters() if p.is_floating_point()), theirs)
    if theirs == ours or "type" not in error.what:
        return None
    there, here = (str(dtype).removeprefix("torch.") for dtype in (theirs, ours))
    return f"{inputs.name} holds {there}, the model {here}: save array.astype('{here}')"


def _load(options: Prediction, model: nn.Module) -> None:
    weights, path = choose_weights(options.weights, options.entry)
    put_weights(weights, path, model)
