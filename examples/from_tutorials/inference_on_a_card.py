"""Inference on chosen GPUs: `model.cuda(3)`, a thread for each GPU, and `dt.Predictor`.

python inference_on_a_card.py
dist-train predict RUN --gpus 0,3 --output answers.jsonl    # a trained run, without a line of Python

The traps: without `eval()` dropout is active and batch norm updates, without `no_grad` every result
keeps its whole graph in GPU memory; threads finish in any order, and an exception in one is lost with its
batch. `dt.Predictor` runs one process per device; results come in the order of their batches, also when a
worker is killed. (`cuda:3` is the fourth GPU of CUDA_VISIBLE_DEVICES, not the machine's GPU 3.)
"""

import threading
from collections.abc import Sequence

import torch
from torch import nn

import dist_train as dt
from dist_train.models.convnet import ConvNet


def tutorial(model: nn.Module, batches: Sequence[torch.Tensor], cards: Sequence[str]) -> list[torch.Tensor]:
    """A thread for each GPU; all append to one list."""
    results: list[torch.Tensor] = []

    def work(card: str, part: Sequence[torch.Tensor]) -> None:
        model.to(card)
        for batch in part:
            results.append(model(batch.to(card)))

    threads = [
        threading.Thread(target=work, args=(card, batches[n :: len(cards)])) for n, card in enumerate(cards)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def ours(model: nn.Module, batches: Sequence[torch.Tensor], cards: Sequence[str]) -> list[torch.Tensor]:
    """One process per device, also for two on one CPU."""
    with dt.Predictor(model, devices=cards) as predictor:
        return list(predictor.predict(batches))


def expected(model: nn.Module, batches: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """One batch after the other, in this process."""
    with torch.inference_mode():
        return [model.eval()(batch) for batch in batches]


if __name__ == "__main__":
    count = torch.cuda.device_count()
    cards = [f"cuda:{n}" for n in range(count)] if count else ["cpu", "cpu"]
    images = list(torch.rand(6, 4, 1, 8, 8))
    for form in (tutorial, ours):
        torch.manual_seed(0)
        network = ConvNet(dropout=0.5)
        found = [result.detach().cpu() for result in form(network, images, cards)]
        wanted = expected(network.cpu(), images)
        right = [
            len(a) == len(b) and torch.allclose(a, b, atol=1e-5) for a, b in zip(found, wanted, strict=True)
        ]
        print(f"{form.__name__ + ':':10}{sum(right)} of {len(wanted)} batches as expected, on {cards}")
