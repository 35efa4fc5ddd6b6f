"""A mean over tokens, accumulated over batches of unlike lengths.

dist-train launch --gpus-per-node 2 token_means.py

Seven texts, of which some tokens do not count (label -100). The tutorial divides the mean of each batch by
the number of batches: tokens of short texts count more, and how much more depends on the batch size and on
the number of processes. `run.backward` takes the sum and the number of tokens: the gradient is the mean over
all tokens that count, of all processes and batches, as in one process with one large batch.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import dist_train as dt

TOKENS = torch.arange(7 * 6).reshape(7, 6) * 5 % 8
COUNTS = torch.arange(6) < torch.tensor([1, 6, 2, 5, 1, 6, 3])[:, None]
TEXTS = TensorDataset(TOKENS, torch.where(COUNTS, TOKENS * 3 % 8, -100))


def words() -> nn.Module:
    """The model, with the same weights in every process."""
    torch.manual_seed(0)
    return nn.Embedding(8, 8)


def step(model: nn.Module) -> list[float]:
    """The first weights after one step by the gradients that are there."""
    torch.optim.SGD(model.parameters(), lr=4.0).step()
    return dt.unwrap(model).weight[:2, 0].tolist()


def alone() -> list[float]:
    """The result of one process with one batch."""
    model = words()
    tokens, labels = TEXTS.tensors
    cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), ignore_index=-100).backward()
    return step(model)


def tutorial(run: dt.Run) -> list[float]:
    """Means of batches, divided by their number."""
    model = words()
    if run.world_size > 1:
        model = nn.parallel.DistributedDataParallel(model)
    sampler = DistributedSampler(TEXTS, num_replicas=run.world_size, rank=run.rank, shuffle=False)
    batches = DataLoader(TEXTS, batch_size=2, sampler=sampler)
    for tokens, labels in batches:
        loss = cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), ignore_index=-100)
        (loss / len(batches)).backward()
    return step(model)


def ours(run: dt.Run) -> list[float]:
    """Sums, with the number of tokens that count."""
    model = dt.prepare(words())
    for tokens, labels in dt.loader(TEXTS, batch_size=4, shuffle=False):
        logits = model(tokens).flatten(0, 1)
        loss_sum = cross_entropy(logits, labels.flatten(), ignore_index=-100, reduction="sum")
        run.backward(loss_sum, units=(labels != -100).sum())
    return step(model)


if __name__ == "__main__":
    with dt.init(seed=0, device="cpu") as current:
        print(f"alone:    {alone()}")
        print(f"tutorial: {tutorial(current)}")
        print(f"ours:     {ours(current)}")
