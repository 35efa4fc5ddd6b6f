"""What a GPU would have to wait for or to hold, seen on a CPU."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # an optimizer loads it, and it sets an environment variable: not inside a test
from nonfinite_cases import Line, net
from test_trainer_nonfinite import config, start
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dist_train.data.exact_loader import ExactLoader
from dist_train.data.reading import torch_loader
from dist_train.distributed.control_group import Control
from dist_train.distributed.pytree import map_tensors
from dist_train.strategies.prepare import load_strategy
from dist_train.trainer.loss_normalizer import UnitCounter
from dist_train.trainer.step import Forward, Stepper
from dist_train.trainer.task import LossOutput, SupervisedTask


class Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts values that the host reads from a tensor: on a GPU it waits for each."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("strategy", ["single", "ddp", "dp"])
def test_no_step_waits_for_the_device(strategy: str) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    task = SupervisedTask(nn.functional.mse_loss)
    loader = ExactLoader(Line(), 4)
    batches = list(loader.micro_batches())
    units = UnitCounter(task, Control(), batches[0])
    forward = Forward(model, task, "fp32", torch.device("cpu"))
    stepper = Stepper(forward, load_strategy(strategy), optimizer, None, units, 1, clip_norm=1.0)
    with Reads() as reads:
        stepper.run([batches[0]])
    assert reads.count == 0


class CountedCopies:
    """Copies that stand in for those to a GPU."""

    live = 0
    most = 0
    started = 0

    def start(self, batch: Any) -> Any:
        type(self).started += 1
        return map_tensors(batch, self._copy)

    def finish(self, batch: Any) -> None:
        pass

    @staticmethod
    def _copy(tensor: Tensor) -> Tensor:
        return Counted(tensor.clone())

    @classmethod
    def ended(cls) -> None:
        cls.live -= 1


class Counted(Tensor):
    """A tensor that is counted as long as it lives."""

    def __new__(cls, data: Tensor) -> Counted:
        made: Counted = Tensor._make_subclass(cls, data)
        CountedCopies.live += 1
        weakref.finalize(made, CountedCopies.ended)
        return made


class Looks(SupervisedTask):
    """Notes how many copies are alive in each forward pass."""

    def __init__(self) -> None:
        super().__init__(nn.functional.mse_loss)

    def loss(self, model: nn.Module, batch: Any) -> LossOutput:
        CountedCopies.most = max(CountedCopies.most, CountedCopies.live)
        inputs, targets = (part.as_subclass(Tensor) for part in batch)
        return super().loss(model, (inputs, targets))


class Varying(Looks):
    """The same, with units that are counted in each batch."""

    units_vary = True

    def units(self, batch: Any) -> int:
        assert not isinstance(batch[1], Counted), "counted on the device: the host would wait for it"
        return int((batch[1] > -100).sum().item())


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> type[CountedCopies]:
    CountedCopies.live = CountedCopies.most = CountedCopies.started = 0
    monkeypatch.setattr(torch_loader, "copies_to", lambda device: None if device is None else CountedCopies())
    return CountedCopies


ACCUMULATE = ("loss=null", "trainer={epochs: 1, accumulate: 4}")


def test_two_micro_batches_of_a_step_are_on_the_device_at_once(
    tmp_path: Path, copies: type[CountedCopies]
) -> None:
    start(tmp_path / "run", config("task=test_trainer_device_work:Looks", *ACCUMULATE))
    assert copies.started >= 40
    assert copies.most == 4, "inputs and targets of the one in use and of the next"


def test_units_that_vary_are_counted_before_the_copy_to_the_device(
    tmp_path: Path, copies: type[CountedCopies]
) -> None:
    start(tmp_path / "run", config("task=test_trainer_device_work:Varying", *ACCUMULATE))
    assert copies.started == 0
