"""The contract of callbacks: state survives a checkpoint, and a resumed run ends with the same bits."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dist_train.testing.ranks import RanksFailed, run_ranks

if TYPE_CHECKING:
    from torch import Tensor

    from dist_train.trainer.callback import Callback

_RANKS, _INTERRUPTED_AT = 2, 8
_CONFIG = f"""
model: {{target: "{__name__}:model"}}
data: {{train: "{__name__}:Points", evaluation: "{__name__}:Points", batch_size: 5}}
loss: mse
optimizer: {{target: sgd, args: {{lr: 0.05, momentum: 0.9}}}}
trainer: {{epochs: 4, log_every_steps: 1}}
checkpoint: {{every_steps: 5}}
"""


def check_callback(factory: Callable[[], Callback], timeout_s: float = 90.0) -> None:
    """Raise AssertionError for the first rule of callbacks that this one breaks.

    A small model with dropout and batch norm is trained on two gloo ranks: once undisturbed, once interrupted
    between two checkpoints and resumed. Weights, state and metrics must have equal hashes, and a new callback
    that loads a state must give the same state again. The trainer itself checks the RNG and the collectives.

    Args:
        factory: makes the callback, with arguments that let it act within 12 steps.
    """
    import torch._dynamo  # noqa: F401 -- DDP imports it: once here, not once in every rank

    import dist_train.trainer.run_training  # noqa: F401 -- likewise
    from dist_train.trainer.callback import Callback

    callback = factory()
    assert isinstance(callback, Callback), f"{callback!r} is no dist_train.trainer.Callback"
    assert callback.name, f"the name of {type(callback).__name__} is empty"
    assert factory() is not callback, "the factory gives one object twice: two runs would share its state"
    with tempfile.TemporaryDirectory(prefix="dist-train-callback-") as folder:
        undisturbed = _run(factory, Path(folder, "undisturbed"), 0, None, timeout_s)
        interrupted = _run(factory, Path(folder, "resumed"), 0, _INTERRUPTED_AT, timeout_s)
        assert interrupted[0]["hashes"] is None, "the interrupted run has ended before its interruption"
        resumed = _run(factory, Path(folder, "resumed"), 1, None, timeout_s)
    for rank, facts in enumerate(undisturbed):
        assert facts["reloads"], f"rank {rank}: load_state_dict and state_dict do not give the state again"
    for what in ("weights_hash", "state_hash", "metrics_hash"):
        ours, theirs = resumed[0]["hashes"][what], undisturbed[0]["hashes"][what]
        assert ours == theirs, f"{callback.name}: {what} of a resumed run is {ours}, undisturbed {theirs}"


def _run(
    factory: Callable[[], Callback], folder: Path, attempt: int, until: int | None, timeout_s: float
) -> list[Any]:
    from dist_train.env import WorkerEnv

    folder.mkdir(exist_ok=True)
    worker = WorkerEnv("callback", folder, attempt, 0, 1, device="cpu", threads_per_rank=1)
    environ = worker.to_environ()
    try:
        return run_ranks(
            train_on_a_rank, _RANKS, timeout_s, args=(factory, str(folder), until), environ=environ
        )
    except RanksFailed as error:
        raise AssertionError(f"{factory().name} on {_RANKS} ranks: {error}") from error


def train_on_a_rank(factory: Callable[[], Callback], folder: str, until: int | None) -> dict[str, Any]:
    """Train with the callback, up to the interruption where there is one."""
    from dist_train.config.load import load_text
    from dist_train.resilience.session import init
    from dist_train.rundir.directory import RunDir
    from dist_train.trainer.callback import Callback, CallbackContext
    from dist_train.trainer.run_training import train

    class Interruption(Callback):
        """Raises on all ranks at the same step."""

        def on_step_end(self, context: CallbackContext) -> None:
            if context.step == until:
                raise KeyboardInterrupt

    callback = factory()
    config = load_text(_CONFIG, "callback.yaml").config
    result = None
    with init(seed=0, device="cpu", timeout_s=30.0) as run:
        try:
            result = train(config, run, RunDir(Path(folder)), callbacks=[callback, Interruption()])
        except KeyboardInterrupt:
            assert until is not None
    names = ("weights_hash", "state_hash", "metrics_hash")
    hashes = None if result is None else {name: getattr(result, name) for name in names}
    return {"hashes": hashes, "reloads": _reloads(callback, factory())}


def _reloads(callback: Callback, other: Callback) -> bool:
    from dist_train.checkpoint.format.hashing import state_hash
    from dist_train.checkpoint.state.encoding import encode

    def digest(one: Callback) -> tuple[str, str]:
        tensors: dict[str, Tensor] = {}
        return repr(encode(one.state_dict(), "state", tensors)), state_hash(tensors, b"")

    other.load_state_dict(callback.state_dict())
    return digest(callback) == digest(other)


def model() -> Any:
    """Dropout and batch norm: what a careless callback disturbs."""
    from torch import nn

    layers = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2)
    return nn.Sequential(*layers)


class Points:
    """Fourteen points, so that the last step of an epoch is smaller."""

    def __len__(self) -> int:
        return 14

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        import torch

        generator = torch.Generator().manual_seed(index)
        return torch.randn(4, generator=generator), torch.randn(2, generator=generator)
