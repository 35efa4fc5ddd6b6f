"""The parts of an estimate that shapes alone decide, for one config: each is measured once for each size."""

from __future__ import annotations

from torch import nn

from dist_train.config.schema import RunConfig
from dist_train.errors import DistTrainError
from dist_train.estimate.activation_memory import ActivationMemory, activation_memory, measure
from dist_train.estimate.optimizer_memory import OptimizerMemory, OptimizerState, Shapes
from dist_train.estimate.sample_batch import SampleBatches
from dist_train.estimate.shape_model import ShapeModel, memory_for_values, memory_limit
from dist_train.strategies.rank_memory import bytes_of
from dist_train.trainer.build_components import make_model, make_task, recompute_activations

# Where values are needed: batches of so many samples are really computed, and larger ones follow a line.
_SMALL_BATCHES = (1, 2)


class MeasuredParts:
    """Optimizer state by shapes, activations by the size of a micro-batch.

    Args:
        config: without the weights of a pretrained model.
        shaped: its model.
        on_gpu: count attention as GPUs' kernels keep it.
    """

    def __init__(self, config: RunConfig, shaped: ShapeModel, on_gpu: bool) -> None:
        self.config = config
        self.model: nn.Module = shaped.model
        self.notes: dict[str, None] = {}
        if shaped.built_for_real is not None:
            self.notes[f"the model was built with values: {shaped.built_for_real}"] = None
        self._on_gpu = on_gpu
        self._state = OptimizerState(config, shaped.model)
        if self._state.note is not None:
            self.notes[f"optimizer: {self._state.note}"] = None
        self._activations: dict[tuple[int, str | None, int], ActivationMemory | None] = {}
        self._batches: SampleBatches | None = None
        self._line: tuple[ActivationMemory, ActivationMemory] | None = None
        self._no_activations = False
        self._autocast = config.trainer.precision != "fp32"

    @property
    def buffers(self) -> int:
        """Bytes of the model's buffers."""
        return bytes_of(self.model.buffers())

    def optimizer(self, shapes: Shapes) -> OptimizerMemory:
        """The state of parameters of these shapes."""
        return self._state.memory(shapes)

    def activations(self, samples: int, compute_dtype: str | None) -> ActivationMemory | None:
        """Those of a micro-batch of so many samples; None where they could not be found (a note says why).

        They are of the model as it is at this moment: a strategy may have given it the shapes of one rank.
        """
        shapes = hash(tuple(tuple(parameter.shape) for parameter in self.model.parameters()))
        key = (samples, compute_dtype, shapes)
        if key not in self._activations:
            self._activations[key] = None if self._no_activations else self._measured(samples, compute_dtype)
        return self._activations[key]

    def activations_at_least(self, samples: int, compute_dtype: str | None) -> ActivationMemory | None:
        """A lower bound of `activations`, from one and two samples: to measure a large model takes seconds.

        Bytes at each moment grow with the samples by a line, so that their maximum is convex, and lies above
        what the line through two smaller sizes says of a larger one.
        """
        one, two = (self.activations(count, compute_dtype) for count in _SMALL_BATCHES)
        if one is None or two is None or samples in _SMALL_BATCHES:
            return None
        return _on_the_line(one, two, samples)

    def _measured(self, samples: int, compute_dtype: str | None) -> ActivationMemory | None:
        try:
            if self._batches is None:
                self._batches = SampleBatches(self.config)
        except Exception as error:  # of the user's data set, which may lie elsewhere
            self._unknown("the training data could not be read", error)
            return None
        try:
            if self._line is None:
                return activation_memory(
                    self.model,
                    make_task(self.config),
                    self._batches.of_size(samples),
                    autocast=self._autocast,
                    compute_dtype=compute_dtype,
                    fused_attention=self._on_gpu,
                )
        except DistTrainError:
            raise
        except Exception as error:  # a model or a task that needs a value
            why = _said(error)
        else:
            why = ""  # known from another size
        try:
            return self._with_values(samples, why)
        except Exception as error:  # it does not work with values either, or needs too much memory
            self._unknown(f"without values: {why}; with values", error)
            return None

    def _with_values(self, samples: int, why: str) -> ActivationMemory:
        if self._line is None:
            assert self._batches is not None
            with memory_limit(memory_for_values()):
                model, task = make_model(self.config), make_task(self.config)
                recompute_activations(model, self.config)
                few, more = (
                    measure(model, task, self._batches.of_size(count), self._autocast)
                    for count in _SMALL_BATCHES
                )
            self._line = (few, more)
            self.notes[
                f"activations: computed with values for {' and '.join(map(str, _SMALL_BATCHES))} samples, "
                f"others in proportion ({why})"
            ] = None
        return _on_the_line(*self._line, samples)

    def _unknown(self, what: str, error: Exception) -> None:
        self._no_activations = True
        self.notes[f"activations are not known: {what}: {_said(error)}"] = None


def _on_the_line(few: ActivationMemory, more: ActivationMemory, samples: int) -> ActivationMemory:
    """What two small batches say of a larger one."""
    return ActivationMemory(
        *(
            round(a + (b - a) * (samples - _SMALL_BATCHES[0]) / (_SMALL_BATCHES[1] - _SMALL_BATCHES[0]))
            for a, b in (
                (few.saved, more.saved),
                (few.peak, more.peak),
                (few.with_gradients, more.with_gradients),
            )
        )
    )


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
