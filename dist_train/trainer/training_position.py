"""The position of the training: everything follows from the number of optimizer steps done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Position:
    """What is done: `epoch` whole epochs (0, 1, …) and `samples_in_epoch` of the next one."""

    step: int
    epoch: int
    samples_in_epoch: int
    samples_total: int


@dataclass(frozen=True)
class Horizon:
    """How far training goes.

    Args:
        samples: samples per epoch.
        batch_size: samples per optimizer step of the whole job; the last step of an epoch may hold fewer.
        total_steps: optimizer steps of the whole run.
    """

    samples: int
    batch_size: int
    total_steps: int

    @classmethod
    def of(cls, samples: int, batch_size: int, epochs: int | None, steps: int | None) -> Horizon:
        """From a length in epochs or in steps; exactly one is given."""
        if (epochs is None) == (steps is None):
            raise ValueError(f"give epochs or steps, not {epochs} and {steps}")
        per_epoch = -(-samples // batch_size)
        return cls(samples, batch_size, steps if steps is not None else (epochs or 0) * per_epoch)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one epoch."""
        return -(-self.samples // self.batch_size)

    @property
    def epochs(self) -> int:
        """Epochs that are begun; the last may be cut short by a length in steps."""
        return -(-self.total_steps // self.steps_per_epoch)

    def at(self, step: int) -> Position:
        """The position once `step` optimizer steps are done."""
        epoch, inner = divmod(step, self.steps_per_epoch)
        in_epoch = min(inner * self.batch_size, self.samples)
        return Position(step, epoch, in_epoch, epoch * self.samples + in_epoch)

    def samples_of(self, step: int) -> int:
        """Samples of the whole job in this step (1, 2, …)."""
        inner = (step - 1) % self.steps_per_epoch
        return min(self.batch_size, self.samples - inner * self.batch_size)

    def epoch_of(self, step: int) -> int:
        """The epoch that this step (1, 2, …) belongs to."""
        return (step - 1) // self.steps_per_epoch

    def ends_epoch(self, step: int) -> bool:
        """Whether this step is the last of its epoch."""
        return step % self.steps_per_epoch == 0
