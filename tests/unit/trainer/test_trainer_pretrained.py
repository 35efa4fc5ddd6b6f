"""A config whose model begins with weights from another tool's file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dist_train.config import check_config, load_config
from dist_train.errors import CheckpointError, ConfigError, NotFoundError
from dist_train.models.convnet import ConvNet
from dist_train.trainer.build_components import make_model

DIGITS = Path(__file__).parents[3] / "examples" / "digits.yaml"


def config(weights: Path, width: int = 32, model: str = "convnet") -> list[str]:
    args = f"{{model: {model}, weights: {weights}, args: {{width: {width}}}}}"
    return [f"model={{target: pretrained, args: {args}}}"]


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A checkpoint as an ImageNet-style script writes it: DataParallel's names inside a record."""
    model = torch.nn.DataParallel(ConvNet(width=32))
    torch.save({"epoch": 9, "state_dict": model.state_dict()}, tmp_path / "theirs.pth.tar")
    return tmp_path / "theirs.pth.tar"


def test_training_begins_with_the_file_s_weights(theirs: Path) -> None:
    read = load_config(DIGITS, config(theirs)).config
    check_config(read, DIGITS.parent)
    found = make_model(read).state_dict()
    there = torch.load(theirs, weights_only=True)["state_dict"]
    assert {f"module.{name}": tensor.tolist() for name, tensor in found.items()} == {
        name: tensor.tolist() for name, tensor in there.items()
    }


def test_weights_that_cannot_be_loaded_are_an_error_before_training(theirs: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"does not fit the model: .*features\.0\.weight"):
        make_model(load_config(DIGITS, config(theirs, width=8)).config)
    with pytest.raises(NotFoundError, match="no file or checkpoint"):
        make_model(load_config(DIGITS, config(tmp_path / "none.pt")).config)
    with pytest.raises(ConfigError, match="convnett"):
        make_model(load_config(DIGITS, config(theirs, model="convnett")).config)
