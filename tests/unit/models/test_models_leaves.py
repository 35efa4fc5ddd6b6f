"""ConvNet learns the digits; ByteTransformer is causal and tied."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from dist_train.data.exact import ExactLoader
from dist_train.datasets import digits
from dist_train.models.convnet import ConvNet
from dist_train.models.transformer import ByteTransformer


@pytest.mark.parametrize("batch_norm", [False, True])
def test_convnet_gives_one_logit_per_class(batch_norm: bool) -> None:
    model = ConvNet(classes=7, width=4, dropout=0.5, batch_norm=batch_norm)
    assert model(torch.zeros(3, 1, 8, 8)).shape == (3, 7)
    assert any("running_mean" in name for name, _ in model.named_buffers()) is batch_norm


def test_convnet_learns_the_digits_in_a_few_epochs() -> None:
    torch.manual_seed(0)
    model = ConvNet(width=16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train = ExactLoader(digits.train(), 64, seed=0)
    while train.epoch < 4:
        for images, labels in train:
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()
    held_out = digits.evaluation()
    with torch.no_grad():
        accuracy = (model(held_out.images).argmax(1) == held_out.labels).float().mean()
    assert accuracy > 0.93


def test_the_transformer_sees_no_later_token() -> None:
    torch.manual_seed(0)
    model = ByteTransformer(context=12).eval()
    tokens = torch.randint(0, 256, (2, 12))
    later = tokens.clone()
    later[:, 7:] = 0
    with torch.no_grad():
        before, after = model(tokens), model(later)
    assert before.shape == (2, 12, 256)
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.equal(before[:, 7:], after[:, 7:])


def test_embedding_and_head_are_one_parameter_under_two_names() -> None:
    model = ByteTransformer()
    assert model.head.weight is model.embedding.weight
    assert {"embedding.weight", "head.weight"} <= set(model.state_dict())
    assert "head.weight" not in dict(model.named_parameters())


def test_dropout_acts_in_training_only() -> None:
    torch.manual_seed(0)
    model = ByteTransformer(dropout=0.5)
    tokens = torch.randint(0, 256, (1, 8))
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))
