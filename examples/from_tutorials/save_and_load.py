"""Save a wrapped model, load it into a plain one: the prefix `module.` of every name.

python save_and_load.py

The trap: `key.replace("module.", "")` also changes the middle of names: `my_module.fc` becomes `my_fc`,
and with `strict=False` (the next line of the same tutorials) nothing is loaded, without an error.
`dt.checkpoint.save_model` writes the plain model's names, whatever the wrappers; `load_model` also opens
torch.save's files, removes `module.` and `_orig_mod.` only as prefixes, logs it, and fails if a name does
not match.
"""

import tempfile
from pathlib import Path

import torch
from torch import nn

import dist_train as dt


class Net(nn.Module):
    """A model with a submodule called my_module, as many have."""

    def __init__(self) -> None:
        super().__init__()
        self.my_module = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        self.head = nn.Linear(3, 1)


def saved_by_others(model: Net, path: Path) -> None:
    """The line of the tutorials: names such as `module.my_module.0.weight`."""
    torch.save(nn.DataParallel(model).state_dict(), path)


def tutorial(path: Path, model: Net) -> None:
    """The workaround found in many posts."""
    state = {name.replace("module.", ""): tensor for name, tensor in torch.load(path).items()}
    model.load_state_dict(state, strict=False)


def ours(path: Path, model: Net) -> None:
    """One line."""
    dt.checkpoint.load_model(path, model)


if __name__ == "__main__":
    trained = Net()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.pt"
        saved_by_others(trained, file)
        for form in (tutorial, ours):
            loaded = Net()
            form(file, loaded)
            same = [
                name
                for name, tensor in loaded.state_dict().items()
                if torch.equal(tensor, trained.state_dict()[name])
            ]
            print(f"{form.__name__ + ':':10}{len(same)} of {len(loaded.state_dict())} tensors loaded: {same}")
