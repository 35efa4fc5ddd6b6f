"""The loops that `loop_overhead.py` measures, by hand, ours and the peers': one model, data set and batch.

Each maker is called in a rank of a gloo group and gives a function that trains so many steps.
"""

from __future__ import annotations

import logging
import os
import queue
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SAMPLES = 8192
Loop = Callable[[int], object]


@dataclass(frozen=True)
class Shape:
    """One size of step.

    Args:
        width: features of the hidden layers.
        batch: samples per step and rank.
    """

    width: int
    batch: int


def device() -> torch.device:
    """Where this rank computes."""
    on_gpu = os.environ.get("DIST_TRAIN_DEVICE") == "cuda"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def data(width: int) -> TensorDataset:
    """Random inputs and ten classes."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, width, generator=generator)
    return TensorDataset(x, torch.randint(0, 10, (SAMPLES,), generator=generator))


def model(width: int) -> nn.Module:
    """Three hidden layers."""
    torch.manual_seed(0)
    hidden = [layer for _ in range(3) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, 10))


def by_hand(shape: Shape) -> Loop:
    """The hand-written DDP loop, with bucket views."""
    net = DistributedDataParallel(model(shape.width).to(device()), gradient_as_bucket_view=True)
    dataset = data(shape.width)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset)
    pinned = device().type == "cuda"
    loader = DataLoader(dataset, batch_size=shape.batch, sampler=sampler, pin_memory=pinned)

    def epoch(number: int) -> DataLoader[Any]:
        sampler.set_epoch(number)
        return loader

    return _plain(net, _optimizer(net), endless(epoch), torch.Tensor.backward)


def prepared(shape: Shape) -> Loop:
    """The same loop after the five changed lines."""
    import dist_train as dt

    run = dt.init(seed=0)
    net = dt.prepare(model(shape.width))
    loader = dt.loader(data(shape.width), batch_size=shape.batch * run.world_size)
    return _plain(net, _optimizer(net), endless(lambda epoch: loader), torch.Tensor.backward)


def accelerated(shape: Shape) -> Loop:
    """Accelerate's five lines."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    net = model(shape.width)
    loader = DataLoader(data(shape.width), batch_size=shape.batch, shuffle=True)
    net, optimizer, loader = accelerator.prepare(net, _optimizer(net), loader)
    return _plain(net, optimizer, endless(lambda epoch: loader), accelerator.backward)


def with_fabric(shape: Shape) -> Loop:
    """Lightning Fabric."""
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp")
    fabric.launch()
    net = model(shape.width)
    net, optimizer = fabric.setup(net, _optimizer(net))
    loader = fabric.setup_dataloaders(DataLoader(data(shape.width), batch_size=shape.batch, shuffle=True))
    return _plain(net, optimizer, endless(lambda epoch: loader), fabric.backward)


def trained(shape: Shape) -> Loop:
    """The trainer's own step: loader, stop vote, finite check, records every ten steps; no save is due."""
    import dist_train as dt
    from dist_train.config.load import load_text
    from dist_train.rundir.directory import RunDir
    from dist_train.trainer.build import build
    from dist_train.trainer.build_components import make_components
    from dist_train.trainer.trainer import steps_of

    run = dt.init(seed=0)
    directory = RunDir(Path(os.environ["BENCHMARK_FOLDER"]) / f"run-{shape.width}")
    if run.is_main:
        directory.create()
    text = _CONFIG.format(width=shape.width, batch=shape.batch * run.world_size)
    config = load_text(text, "loop.yaml").config
    trainer = build(config, make_components(config), run, directory, grace_s=30.0)
    batches = trainer.pace.waiting(endless(lambda epoch: steps_of(trainer.loader)))
    done = 0

    def loop(steps: int) -> None:
        nonlocal done
        for _ in range(steps):
            done += 1
            trainer.step(done, next(batches))

    return loop


_CONFIG = """
model: {{target: "training_loops:model", args: {{width: {width}}}}}
data: {{train: {{target: "training_loops:data", args: {{width: {width}}}}}, batch_size: {batch}}}
loss: torch.nn.functional:cross_entropy
optimizer: {{target: "torch.optim:SGD", args: {{lr: 0.01}}}}
trainer: {{steps: 1000000000, log_every_steps: 10}}
checkpoint: {{every_steps: 1000000000}}
"""


def with_lightning(shape: Shape) -> Loop:
    """Lightning's Trainer, without logger, checkpoints, progress bar and summary.

    Its loop cannot be left and entered again: it runs in a thread that waits between the rounds.
    """
    import pytorch_lightning as pl

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    turns = _Turns()

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = model(shape.width)

        def training_step(self, batch: Any, index: int) -> Any:
            inputs, targets = batch
            return cross_entropy(self.net(inputs), targets)

        def configure_optimizers(self) -> Any:
            return _optimizer(self.net)

        def on_train_batch_start(self, batch: Any, index: int) -> None:
            turns.begin_step()

    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tempfile.gettempdir(),
    )
    loader = DataLoader(data(shape.width), batch_size=shape.batch, shuffle=True)

    def fit() -> None:
        try:
            trainer.fit(Module(), loader)
        except BaseException as error:
            turns.failed(error)
            raise

    threading.Thread(target=fit, daemon=True).start()
    return turns.train


class _Turns:
    """Lets a loop in another thread do so many steps, and waits for them.

    A round ends where the step after it begins: before that the loop may be at a collective of its own, and
    this thread's barrier would come at another place in the order on every rank.
    """

    def __init__(self) -> None:
        self._rounds: queue.Queue[int] = queue.Queue()
        self._ends: queue.Queue[BaseException | None] = queue.Queue()
        self._left = 0
        self._is_in_round = False

    def train(self, steps: int) -> None:
        self._rounds.put(steps)
        error = self._ends.get()
        if error is not None:
            raise error

    def begin_step(self) -> None:
        if self._left == 0:
            if self._is_in_round:
                self._ends.put(None)
            self._left, self._is_in_round = self._rounds.get(), True
        self._left -= 1

    def failed(self, error: BaseException) -> None:
        self._ends.put(error)


def endless(epochs: Callable[[int], Any]) -> Iterator[Any]:
    """Batches of one epoch after another."""
    epoch = 0
    while True:
        yield from epochs(epoch)
        epoch += 1


def _optimizer(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.01)


def _plain(
    net: nn.Module, optimizer: Any, batches: Iterator[Any], backward: Callable[[torch.Tensor], object]
) -> Loop:
    place = device()

    def loop(steps: int) -> None:
        for _ in range(steps):
            inputs, targets = next(batches)
            if place.type == "cuda":
                inputs, targets = inputs.to(place, non_blocking=True), targets.to(place, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            backward(cross_entropy(net(inputs), targets))
            optimizer.step()

    return loop


LOOPS: dict[str, Callable[[Shape], Loop]] = {
    "by hand": by_hand,
    "dt.prepare": prepared,
    "trainer": trained,
    "accelerate": accelerated,
    "Fabric": with_fabric,
    "Lightning Trainer": with_lightning,
}
# These form the group themselves.
FORM_THE_GROUP = frozenset({"dt.prepare", "trainer"})
