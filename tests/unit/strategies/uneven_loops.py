"""Training loops over uneven batches, of every shape that should have one process's gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import dist_train as dt
from dist_train.strategies.prepare import load_strategy

# 11 samples in steps of 4 are 2 + 2, 2 + 2, 2 + 1 on two ranks and 2 + 1 + 1, 2 + 1 + 1, 1 + 1 + 1 on three.
N, BATCH = 11, 4


def values(n: int, width: int, start: float = 0.0) -> torch.Tensor:
    return (torch.arange(n * width, dtype=torch.float64) * 0.7 + start).sin().reshape(n, width)


def labels_of(n: int) -> torch.Tensor:
    return torch.arange(n) % 3 % 2


def new_loader(n: int = N, batch: int = BATCH, start: float = 0.0, **options: Any) -> Any:
    return dt.loader(TensorDataset(values(n, 3, start), labels_of(n)), batch, **options)


# By which strategy the models are prepared.
STRATEGY = "ddp"


def new_net(into: int = 3, out: int = 2, **options: Any) -> Any:
    torch.manual_seed(3)
    return prepared(nn.Sequential(nn.Linear(into, 5), nn.Tanh(), nn.Linear(5, out)).double(), **options)


def prepared(model: nn.Module, **options: Any) -> Any:
    return dt.prepare(model, STRATEGY, **options)


def without_exchange(model: nn.Module) -> AbstractContextManager[None]:
    """The strategy's context in which gradients are added up and not exchanged."""
    return load_strategy(STRATEGY).no_sync(model)


def sgd(*modules: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD([p for module in modules for p in module.parameters()], 0.3)


def _weights(*modules: nn.Module) -> list[float]:
    return [v for module in modules for p in module.parameters() for v in _numbers(p.detach())]


def _gradients(*modules: nn.Module) -> list[float]:
    grads = [p.grad for module in modules for p in module.parameters() if p.grad is not None]
    return [v for grad in grads for v in _numbers(grad)]


def _numbers(tensor: torch.Tensor) -> list[float]:
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole.flatten().tolist()  # type: ignore[no-any-return]


def chained_modules(run: dt.Run) -> list[float]:
    encoder, head = new_net(3, 4), new_net(4, 2)
    optimizer = sgd(encoder, head)
    for x, y in new_loader():
        optimizer.zero_grad()
        functional.cross_entropy(head(encoder(x)), y).backward()
        optimizer.step()
    return _weights(encoder, head)


def hidden_state(run: dt.Run) -> list[float]:
    cell = new_net(8, 5)
    optimizer = sgd(cell)
    for x, _ in new_loader():
        optimizer.zero_grad()
        state = x.new_zeros(len(x), 5)
        for _ in range(3):
            state = cell(torch.cat([x, state], 1))
        state.square().mean().backward()
        optimizer.step()
    return _weights(cell)


def gradient_penalty(run: dt.Run) -> list[float]:
    critic = new_net(3, 1)
    optimizer = sgd(critic)
    norms = 0.0
    for x, _ in new_loader():
        x = x.clone().requires_grad_(True)
        optimizer.zero_grad()
        scores = critic(x)
        (slope,) = torch.autograd.grad(scores.sum(), x, create_graph=True)
        norms += run.control.sum([float(slope.detach().square().sum())])[0]
        (scores.mean() + 10 * (slope.norm(dim=1) - 1).square().mean()).backward()
        optimizer.step()
    return [*_weights(critic), norms]


class _KeepsItsLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.out = nn.Linear(3, 4), nn.Linear(4, 2)
        self.balance = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.gate(x).softmax(1)
        self.balance = (chosen * chosen.log()).sum(1).mean()
        return self.out(chosen)  # type: ignore[no-any-return]


def loss_as_an_attribute(run: dt.Run) -> list[float]:
    torch.manual_seed(1)
    inner = _KeepsItsLoss().double()
    model = prepared(inner)
    optimizer = sgd(model)
    for x, y in new_loader():
        optimizer.zero_grad()
        (functional.cross_entropy(model(x), y) + inner.balance).backward()
        optimizer.step()
    return _weights(model)


def accumulated_by_hand(run: dt.Run, quiet: bool = False, **options: Any) -> list[float]:
    """Means of two batches, exchanged at each backward or only at the second one."""
    model = new_net(**options)
    optimizer = sgd(model)
    for index, (x, y) in enumerate(new_loader(n=7)):
        silent = quiet and index == 0 and run.world_size > 1
        with without_exchange(model) if silent else nullcontext():
            (functional.cross_entropy(model(x), y) / 2).backward()
    optimizer.step()
    return _weights(model)


def sum_of_losses(run: dt.Run) -> list[float]:
    model = new_net()
    optimizer = sgd(model)
    for x, y in new_loader():
        optimizer.zero_grad()
        run.backward(functional.cross_entropy(model(x), y, reduction="sum"), units=len(y))
        optimizer.step()
    return _weights(model)


def _token_labels(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.where(x[:, 1] > 0.3, torch.full_like(y, -100), y)


def token_means(run: dt.Run, zeroed: bool = False, **options: Any) -> list[float]:
    """Accumulated over pairs of batches; the second pair after zero_grad, with and without a step before."""
    model = new_net(**options)
    optimizer = sgd(model)
    for group in range(2):
        optimizer.zero_grad(set_to_none=not zeroed)
        for x, y in new_loader():
            labels = _token_labels(y, x)
            loss = functional.cross_entropy(model(x), labels, ignore_index=-100, reduction="sum")
            run.backward(loss, units=(labels != -100).sum())
        if group or not zeroed:
            optimizer.step()
    return _weights(model)


def token_means_by_hand(run: dt.Run) -> list[float]:
    """What plain torch has for token_means: the mean over all tokens of the data."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    optimizer = sgd(model)
    x, y = values(N, 3), labels_of(N)
    for _ in range(2):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), _token_labels(y, x)).backward()
        optimizer.step()
    return _weights(model)


def silent_tokens(run: dt.Run) -> list[float]:
    """Accumulated without an exchange until the last call."""
    model = new_net()
    optimizer, loader = sgd(model), new_loader()
    for index, (x, y) in enumerate(loader):
        with without_exchange(model) if run.world_size > 1 and index < len(loader) - 1 else nullcontext():
            run.backward(functional.cross_entropy(model(x), y, reduction="sum"), units=len(y))
    optimizer.step()
    return _weights(model)


def two_loaders(run: dt.Run) -> list[float]:
    model = new_net()
    optimizer = sgd(model)
    pairs = zip(new_loader().micro_batches(), new_loader(7, 3, 0.2).micro_batches(), strict=False)
    for a, b in pairs:
        optimizer.zero_grad()
        sums = [
            functional.cross_entropy(model(part.batch[0]), part.batch[1], reduction="sum") for part in (a, b)
        ]
        run.backward(sums, units=(a.count, b.count))
        optimizer.step()
    return _weights(model)


def evaluation_mode(run: dt.Run) -> list[float]:
    model = new_net().eval()
    optimizer = sgd(model)
    for x, y in new_loader():
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return _weights(model)


def empty_shares(run: dt.Run) -> list[float]:
    """Steps of two samples: a third rank has a placeholder, here one with an infinite loss."""
    model = new_net()
    optimizer = sgd(model)
    for x, y in new_loader(5, 2):
        optimizer.zero_grad()
        weight = torch.inf if run.batch_weight.local == 0 else 1.0
        loss = functional.cross_entropy(model(x), y, reduction="none") * weight
        run.backward(loss.sum(), units=len(y))
        optimizer.step()
    return _weights(model)


def adversaries(run: dt.Run, exact: bool = False) -> list[float]:
    made, judge = new_net(3, 3), new_net(3, 1)
    optimizers = sgd(made), sgd(judge)

    def backward(scores: torch.Tensor) -> None:
        if exact:
            run.backward(scores.sum(), units=len(scores))
        else:
            scores.mean().backward()

    for x, _ in new_loader():
        optimizers[1].zero_grad()
        backward(functional.softplus(-judge(x)))
        backward(functional.softplus(judge(made(x).detach())))
        optimizers[1].step()
        optimizers[0].zero_grad()
        backward(functional.softplus(-judge(made(x))))
        optimizers[0].step()
    return _weights(made, judge)


def stepped_together(run: dt.Run) -> list[float]:
    """Two modules accumulate over two batches, one reached by both losses: each has its own sum of units."""
    made, judge = new_net(3, 3), new_net(3, 1)
    for x, _ in new_loader(7):
        run.backward(judge(made(x).detach()).square().sum(), units=len(x))
        judge.requires_grad_(False)
        run.backward(-judge(made(x)).sum(), units=len(x))
        judge.requires_grad_(True)
    return _gradients(made, judge)


def micro_batches_of_one_step(run: dt.Run) -> list[float]:
    """The shares of micro-batches: samples of this rank's micro-batch of the whole step's samples."""
    data = TensorDataset(values(N, 3), labels_of(N))
    loader = dt.data.ExactLoader(data, N, rank=run.rank, world_size=run.world_size, accumulate=3)
    model, slot = new_net(), run.batch_weight.open()
    for micro_batch in loader.micro_batches():
        x, y = micro_batch.batch
        slot.set(micro_batch.count, micro_batch.step_count)
        functional.cross_entropy(model(x), y).backward()
    slot.close()
    return _gradients(model)


def units_of_micro_batches(run: dt.Run) -> list[float]:
    model = new_net()
    optimizer, loader = sgd(model), new_loader(accumulate=2)
    for micro_batch in loader.micro_batches():
        x, y = micro_batch.batch
        run.backward(functional.cross_entropy(model(x), y, reduction="sum"), units=micro_batch.count)
        if loader.step_complete:
            optimizer.step()
            optimizer.zero_grad()
    return _weights(model)


def micro_batches_weighted_by_the_loop(run: dt.Run) -> list[float]:
    # It says that nothing is to be weighted.
    model = new_net()
    for micro_batch in new_loader(N, N, accumulate=2).micro_batches():
        x, y = micro_batch.batch
        loss_sum = functional.cross_entropy(model(x), y, reduction="sum")
        run.batch_weight.local = run.batch_weight.total = 0
        (loss_sum * (run.world_size / micro_batch.step_count if micro_batch.count else 0.0)).backward()
    return _gradients(model)


def micro_batches_of_even_shares(run: dt.Run) -> list[float]:
    """A plain backward pass over each is right; an evaluation in between changes nothing."""
    model, held_out = new_net(), new_loader(5, 3, 0.4)
    for x, y in (micro_batch.batch for micro_batch in new_loader(12, 6).micro_batches()):
        with torch.no_grad():
            for other in held_out.micro_batches():
                model(other.batch[0])
        functional.cross_entropy(model(x), y).backward()
    return _gradients(model)


def reading_ahead(batches: Any) -> Iterator[Any]:
    """Each batch is read before the one before it is given out."""
    iterator = iter(batches)
    held = next(iterator)
    for following in iterator:
        yield held
        held = following
    yield held


def read_ahead_of_even_shares(run: dt.Run) -> list[float]:
    model = new_net()
    optimizer = sgd(model)
    for x, y in reading_ahead(new_loader(n=18, batch=6)):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return _weights(model)


def left_out_after_its_forward(run: dt.Run) -> list[float]:
    """A loop may leave a batch out, evaluate inside and read one batch alone: nothing is refused."""
    model = new_net()
    optimizer, held_out = sgd(model), new_loader(5, 3, 0.4)
    for index, (x, y) in enumerate(new_loader()):
        loss = functional.cross_entropy(model(x), y)
        if index == 0:
            continue
        optimizer.zero_grad()
        with torch.no_grad():
            for a, _ in held_out:
                model(a)
        loss.backward()
        optimizer.step()
    x, y = next(iter(held_out))
    functional.cross_entropy(model(x), y).backward()
    return _weights(model) + _gradients(model)


def frozen_for_the_generators_step(run: dt.Run) -> list[float]:
    """A discriminator is frozen when the next batch is read, and trains again in its forward pass."""
    generator, critic = new_net(3, 3), new_net(3, 1)
    of_generator, of_critic = sgd(generator), sgd(critic)
    for x, _ in new_loader():
        fake = generator(x)
        critic.requires_grad_(True)
        of_critic.zero_grad()
        (
            functional.softplus(-critic(x)).mean() + functional.softplus(critic(fake.detach())).mean()
        ).backward()
        of_critic.step()
        critic.requires_grad_(False)
        of_generator.zero_grad()
        functional.softplus(-critic(fake)).mean().backward()
        of_generator.step()
    return _weights(generator, critic)


EXACT: dict[str, Callable[[dt.Run], list[float]]] = {
    "two prepared modules in a row": chained_modules,
    "a hidden state fed back": hidden_state,
    "frozen for the generator's step": frozen_for_the_generators_step,
    "autograd.grad to the input": gradient_penalty,
    "a loss kept as an attribute": loss_as_an_attribute,
    "accumulated, each exchanged": accumulated_by_hand,
    "accumulated, last exchanged": functools.partial(accumulated_by_hand, quiet=True),
    "accumulated without bucket views": functools.partial(
        accumulated_by_hand, quiet=True, gradient_as_bucket_view=False, bucket_cap_mb=0.0001
    ),
    "reduction=sum": sum_of_losses,
    "token means": token_means,
    "token means, gradients zeroed": functools.partial(token_means, zeroed=True),
    "token means, unused parameters": functools.partial(token_means, find_unused_parameters=True),
    "token means, static graph": functools.partial(token_means, static_graph=True),
    "tokens exchanged at the end": silent_tokens,
    "two loaders": two_loaders,
    "a model in evaluation mode": evaluation_mode,
    "empty shares": empty_shares,
    "two adversaries": adversaries,
    "two adversaries, exact": functools.partial(adversaries, exact=True),
    "two modules stepped together": stepped_together,
    "micro-batches of one step": micro_batches_of_one_step,
    "micro-batches with their units": units_of_micro_batches,
    "micro-batches, weighted by the loop": micro_batches_weighted_by_the_loop,
    "micro-batches of even shares": micro_batches_of_even_shares,
    "read ahead, even shares": read_ahead_of_even_shares,
    "left out after its forward": left_out_after_its_forward,
}
