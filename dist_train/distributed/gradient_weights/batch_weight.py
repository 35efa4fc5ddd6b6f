"""This rank's share of an optimizer step's samples, and to which backward pass a share belongs.

A loop over a loader computes the MEAN over its own samples, and strategies average the ranks' gradients
with equal weight: each rank's gradient times `Share.weight` makes the result the mean over the step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dist_train.distributed.gradient_weights.kept_batches import KeptBatch
from dist_train.distributed.gradient_weights.read_ahead import ReadAhead
from dist_train.errors import UsageError


@dataclass(frozen=True)
class Share:
    """This rank's samples (`local`) of a step's (`total`); both 0: nothing is known.

    Args:
        parts: where the loop itself weights its losses: micro-batches of the step on each rank. 0: the
            gradients are weighted by this share.
    """

    local: int
    total: int
    parts: int = 0

    def weight(self, world_size: int) -> float:
        """local * world_size / total, or 1.0 when nothing is known."""
        return self.local * world_size / self.total if self.total else 1.0

    def alike(self, other: Share) -> bool:
        """Whether both give the same weight."""
        return self.local * other.total == other.local * self.total and self.parts == other.parts

    def is_even(self, world_size: int) -> bool:
        """Whether a mean over it counts as much as that over any other part of the step."""
        return self.local * world_size * max(1, self.parts) == self.total


class BatchWeight:
    """The shares of the batches that are being trained on.

    `local` and `total` are those of the newest batch of a loader iteration that is still open, 0 where
    there is none. A loop that makes its own batches may set them itself before each backward pass.
    """

    def __init__(self) -> None:
        self._by_hand: Share | None = None
        self._slots: list[BatchWeightSlot] = []
        self._on_change: Callable[[], None] = lambda: None

    @property
    def local(self) -> int:
        """Samples of this rank in the newest batch."""
        return self._newest().local

    @local.setter
    def local(self, value: int) -> None:
        self._by_hand = Share(value, self._newest().total)
        self._on_change()

    @property
    def total(self) -> int:
        """Samples of all ranks in the newest batch's step."""
        return self._newest().total

    @total.setter
    def total(self, value: int) -> None:
        self._by_hand = Share(self._newest().local, value)
        self._on_change()

    def weight(self, world_size: int) -> float:
        """The newest batch's weight."""
        return self._newest().weight(world_size)

    def open(self, parts: int = 0) -> BatchWeightSlot:
        """Return a slot for one loader iteration.

        Args:
            parts: see `Share`.
        """
        return BatchWeightSlot(self, parts)

    def listen(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` after every change of the shares."""
        self._on_change = on_change

    def candidates(self) -> list[Share]:
        """The unlike shares that the next backward pass may belong to; none while nothing is known."""
        if self._by_hand is not None:
            return [self._by_hand]
        unlike: list[Share] = []
        for slot in self._slots:
            for share in slot.candidates():
                if not any(share.alike(other) for other in unlike):
                    unlike.append(share)
        return unlike

    def of_backward(self, world_size: int) -> float:
        """The weight of this backward pass's gradient.

        Raises:
            UsageError: batches of unlike shares are in use, so that it cannot be known; or the loop weights
                its losses itself, by run.backward, and this pass is not weighted.
        """
        found = self.candidates()
        for share in found:
            if share.parts and not share.is_even(world_size):
                raise not_weighted(share, world_size)
        weighting = [share for share in found if not share.parts]
        if len(weighting) > 1:
            raise unlike_shares(weighting)
        return weighting[0].weight(world_size) if weighting else 1.0

    def refuse_counted_placeholders(self, units: Sequence[int]) -> None:
        """Check the units of the batches that wait for their backward passes: a placeholder has none.

        Only where they are of one iteration: of several it is not known which batches these are.

        Raises:
            UsageError: more of them have units than have samples.
        """
        waiting = [slot for slot in self._slots if slot.waiting]
        if self._by_hand is not None or len(waiting) != 1:
            return
        shares = waiting[0].newest_shares(min(len(units), waiting[0].waiting))
        placeholders = sum(share.local == 0 and share.total > 0 for share in shares)
        if placeholders > sum(count == 0 for count in units):
            raise counted_placeholder()

    def forward_seen(self) -> None:
        """A prepared module runs: the batches that were handed out are in use from now on."""
        for slot in self._slots:
            slot.read_ahead.use()

    def backward_seen(self) -> None:
        """A backward pass reaches a prepared module."""
        for slot in self._slots:
            slot.backward_seen()

    def step_seen(self) -> None:
        """An optimizer has stepped."""
        for slot in self._slots:
            slot.handed_since_step = 0

    @property
    def handed_since_step(self) -> int:
        """Batches handed out since an optimizer stepped."""
        return sum(slot.handed_since_step for slot in self._slots)

    def _newest(self) -> Share:
        if self._by_hand is not None:
            return self._by_hand
        return next((slot.newest for slot in reversed(self._slots) if not slot.closed), Share(0, 0))


class BatchWeightSlot:
    """The shares of one loader iteration.

    Batches read under torch.no_grad() are an evaluation's: they weight no gradient.

    Args:
        parts: see `Share`.
    """

    def __init__(self, owner: BatchWeight, parts: int = 0) -> None:
        self._owner = owner
        self._parts = parts
        self.newest = Share(0, 0)
        self.closed = False
        self.read_ahead = ReadAhead()
        self.handed_since_step = 0
        self._since_backward = 0
        self._trained = False
        self._kept: KeptBatch | None = None
        self._handed = 0
        # Newest last; equal neighbours are one entry with their number.
        self._runs: list[tuple[Share, int]] = []

    def set(self, local: int, total: int, batch: Any = None) -> None:
        """Record that the batch handed out now holds `local` of its step's `total` samples.

        Args:
            batch: of the first one it is noticed whether the program keeps it.
        """
        owner, self.newest = self._owner, Share(local, total, self._parts)
        owner._by_hand = None
        slots = owner._slots
        if self in slots:
            slots.remove(self)
        if torch.is_grad_enabled():
            self._hand_out()
            if self._handed == 1:
                self._kept = KeptBatch(batch)
            slots[:] = [slot for slot in slots if not slot.closed or slot._kept_on]
        slots.append(self)
        owner._on_change()

    @property
    def waiting(self) -> int:
        """Batches that were handed out since a backward pass was seen."""
        return self._since_backward

    @property
    def left_unused(self) -> bool:
        """Whether the newest batch was trained on by no backward pass, where one was to be expected."""
        return self._since_backward > 0 and (self._trained or self._handed == 1)

    @property
    def _kept_on(self) -> bool:
        # Of a single batch the loop's own variables are still there.
        return self.closed and self._handed > 1 and self._kept is not None and self._kept.alive

    def close(self) -> None:
        """End this iteration; the share that was set before it applies again.

        Batches that no backward pass has been seen for may still be waiting in the program: their
        shares stay candidates until the next batch is handed out.
        """
        owner, self.closed = self._owner, True
        slots, owner._by_hand = owner._slots, None
        alone = all(slot is self or slot.closed for slot in slots)
        waiting = self._since_backward > 0 or self.read_ahead.depth > 1
        if self in slots and not (self._kept_on or (waiting and (alone or self._trained))):
            slots.remove(self)
        owner._on_change()

    def drop(self) -> None:
        """Forget this iteration, because another one of the same loader begins."""
        self.closed = True
        if self in self._owner._slots:
            self._owner._slots.remove(self)

    def candidates(self) -> Iterator[Share]:
        """The shares of the batches that the next backward pass may be about, newest first."""
        wanted = max(1, self.read_ahead.depth, self._since_backward) if self._runs else 0
        if self._kept_on:
            wanted = self._handed
        yield from (share for share, _ in self._newest_runs(wanted))

    def newest_shares(self, count: int) -> list[Share]:
        """The shares of the batches that were handed out last, at most so many."""
        return [share for share, times in self._newest_runs(count) for _ in range(times)]

    def backward_seen(self) -> None:
        """A backward pass reaches a prepared module."""
        self.read_ahead.backward()
        self._since_backward = 0
        self._trained = True

    def refuse_position(self) -> None:
        """Raise UsageError if the newest batch has been read but not trained on: a resume would skip it."""
        if self.closed and self not in self._owner._slots:
            return
        self.read_ahead.refuse_position(self.closed)

    def _newest_runs(self, wanted: int) -> Iterator[tuple[Share, int]]:
        for share, times in reversed(self._runs):
            if wanted <= 0:
                return
            yield share, min(times, wanted)
            wanted -= times

    def _hand_out(self) -> None:
        self.read_ahead.hand_out(threading.get_ident())
        self._handed += 1
        self._since_backward += 1
        self.handed_since_step += 1
        if self._runs and self._runs[-1][0] == self.newest:
            self._runs[-1] = (self.newest, self._runs[-1][1] + 1)
        else:
            self._runs.append((self.newest, 1))


def counted_placeholder() -> UsageError:
    """The error of units that count the sample of a placeholder."""
    return UsageError(
        "one of the batches in use is a placeholder, which counts no sample",
        cause="its step has fewer samples than micro-batches, or two loaders are iterated together, or "
        "batches are read ahead: one of these has no sample of this rank in its step",
        hint="iterate loader.micro_batches() and give units=micro_batch.count",
    )


def unlike_shares(found: list[Share]) -> UsageError:
    """The error of a backward pass whose batch cannot be known."""
    named = ", ".join(f"{share.local} of {share.total}" for share in found)
    return UsageError(
        f"a backward pass cannot be weighted: it may be about batches with unlike shares of their steps "
        f"(samples of this rank: {named})",
        cause="two loaders are iterated together, batches are read ahead of the one that is trained on, "
        "batches are kept and trained on again after their loop (itertools.cycle), or one loss is about "
        "several batches",
        hint="sum the loss and give its number of samples, in place of loss.backward():\n"
        '         run.backward(F.cross_entropy(model(x), y, reduction="sum"), units=len(y))\n'
        "         a loss of two loaders: run.backward((sum_a, sum_b), units=(a.count, b.count)) "
        "with zip(loader_a.micro_batches(), loader_b.micro_batches());\n"
        "         again and again over one loader, in place of itertools.cycle(loader): "
        "itertools.chain.from_iterable(itertools.repeat(loader));\n"
        "         an evaluation: under torch.no_grad(), its loader included",
    )


def not_weighted(share: Share, world_size: int) -> UsageError:
    """The error of a plain backward pass where a loop must give the units of its losses."""
    even = share.total / (world_size * share.parts)
    return UsageError(
        f"a backward pass over loader.micro_batches() is not weighted: this rank's micro-batch has "
        f"{share.local} of its step's {share.total} samples, an even part has {even:g}",
        cause="the mean over a smaller micro-batch would count as much as that over a larger one",
        hint="sum the loss and give its number of samples, in place of loss.backward():\n"
        '         run.backward(F.cross_entropy(model(x), y, reduction="sum"), units=micro_batch.count)\n'
        "         or iterate the loader itself, `for x, y in loader:`, whose plain loss.backward() is "
        "weighted;\n"
        "         a loss that the loop has weighted already: before its backward pass "
        "run.batch_weight.local = run.batch_weight.total = 0",
    )
