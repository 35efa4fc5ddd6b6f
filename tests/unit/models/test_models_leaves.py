"""ConvNet learns the digits, ResNet has torchvision's names; ByteTransformer is causal and tied."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from dist_train.data.exact_loader import ExactLoader
from dist_train.datasets import digits
from dist_train.errors import ConfigError
from dist_train.models.convnet import ConvNet
from dist_train.models.resnet import ResNet
from dist_train.models.transformer import ByteTransformer


@pytest.mark.parametrize("batch_norm", [False, True])
def test_convnet_gives_one_logit_per_class(batch_norm: bool) -> None:
    model = ConvNet(classes=7, width=4, dropout=0.5, batch_norm=batch_norm)
    assert model(torch.zeros(3, 1, 8, 8)).shape == (3, 7)
    assert any("running_mean" in name for name, _ in model.named_buffers()) is batch_norm


def test_convnet_takes_other_sizes_and_refuses_a_mismatch() -> None:
    model = ConvNet(width=4, image_size=28, channels=3)
    assert model(torch.zeros(2, 3, 28, 28)).shape == (2, 10)
    with pytest.raises(ConfigError, match="images of 8 pixels a side in a ConvNet for 28") as caught:
        model(torch.zeros(2, 3, 8, 8))
    assert "model.args.image_size=8" in str(caught.value)
    with pytest.raises(ConfigError, match="image_size 3"):
        ConvNet(image_size=3)
    assert list(ConvNet().state_dict()) == list(model.state_dict()), "checkpoints of the digits fit as before"


def test_resnet18_is_torchvision_s_name_by_name() -> None:
    model = ResNet("resnet18")
    assert sum(p.numel() for p in model.parameters()) == 11_689_512  # as torchvision documents it
    names = set(model.state_dict())
    assert {"conv1.weight", "bn1.running_var", "layer1.1.bn2.bias", "fc.weight"} <= names
    assert {"layer4.0.downsample.0.weight", "layer4.0.downsample.1.num_batches_tracked"} <= names
    assert not any(name.startswith("layer1.0.downsample") for name in names)
    assert sum(p.numel() for p in ResNet("resnet34").parameters()) == 21_797_672


@pytest.mark.parametrize(("side", "small"), [(16, True), (28, True), (64, False)])
def test_resnet_takes_images_of_any_size(side: int, small: bool) -> None:
    model = ResNet("resnet10", classes=7, channels=1, width=4, small_images=small)
    assert model(torch.zeros(2, 1, side, side)).shape == (2, 7)
    with pytest.raises(ConfigError, match="resnet10, resnet18, resnet34"):
        ResNet("resnet11")


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


def test_the_transformer_is_causal() -> None:
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


def test_dropout_is_active_in_training_only() -> None:
    torch.manual_seed(0)
    model = ByteTransformer(dropout=0.5)
    tokens = torch.randint(0, 256, (1, 8))
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))
