"""`dist-train estimate`: the table, its verdict, and what it refuses."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dist_train.cli.run import estimate_process
from dist_train.config import dump_config, load_config

EXAMPLES = Path(__file__).parents[3] / "examples"
DIGITS, LANGUAGE = EXAMPLES / "digits.yaml", EXAMPLES / "language_model.yaml"
_DATA = """
import torch
class Rows(torch.utils.data.Dataset):
    def __init__(self):
        print("data of the user's own")
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.full((8,), 1.0), torch.tensor(index % 2)
class Elsewhere(Rows):
    def __init__(self):
        raise FileNotFoundError("/scratch/train.bin")
def Net(width=16):
    return torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, 2))
"""
_BROKEN = "def Net(width=16):\n    raise KeyError('no such layer')"
_OWN = """
model: my_model:Net
data:
  train: my_model:Rows
  batch_size: 32
loss: cross_entropy
optimizer:
  target: adamw
  args:
    lr: 0.1
trainer:
  steps: 2
"""


@pytest.fixture
def own(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A config with modules beside it."""
    (here / "my_model.py").write_text(_DATA)
    (here / "own.yaml").write_text(_OWN)
    monkeypatch.syspath_prepend(str(here))
    yield here / "own.yaml"
    sys.modules.pop("my_model", None)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimate as the process of its own does, without the seconds that importing torch takes in each."""

    def run(command: list[str], input: str, **kwargs: Any) -> Any:
        assert command[1:] == ["-P", "-m", "dist_train.estimate"]
        from dist_train.estimate.__main__ import respond

        with contextlib.redirect_stdout(sys.stderr):
            code, record = respond(json.loads(input))
        return subprocess.CompletedProcess(command, code, json.dumps(record), None)

    monkeypatch.setattr(estimate_process.subprocess, "run", run)


def in_a_process(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dist_train", "estimate", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.usefixtures("in_this_process")
def test_the_table_and_what_fits(dist_train: Any) -> None:
    words = ("strategy=fsdp", "--nodes", "2", "--gpus-per-node", "2", "--gpu-memory", "1GiB")
    said = dist_train("estimate", LANGUAGE, *words)
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[0] == "ByteTransformer: 124,672 parameters, 487.0 KiB; optimizer adamw"
    assert lines[1] == "4 rank(s) (2 node(s) x 2); batch of 32, 8 sample(s) per rank and micro-batch"
    assert lines[3].split()[:3] == ["strategy", "mesh", "parameters"]
    assert lines[3].endswith("in 1.0 GiB")
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines[4:7]]
    # AdamW keeps two numbers for each, and a step of 4 bytes: 28 parameters.
    assert cells[0][:5] == ["fsdp *", "shard 4", "121.8 KiB", "121.8 KiB", "243.6 KiB"]
    assert cells[1][:5] == ["ddp", "replicate 4", "487.0 KiB", "487.0 KiB", "974.1 KiB"]
    assert cells[2][:2] == ["hsdp", "replicate 2 x shard 2"]
    assert {row[-1] for row in cells} == {"fits"}
    assert "at this size the least cut that fits: strategy=ddp" in lines
    assert lines[-1] == "the fewest ranks that fit: strategy=single --nodes 1 --gpus-per-node 1"


@pytest.mark.usefixtures("in_this_process")
def test_as_json_and_from_a_users_own_folder(own: Path, dist_train: Any) -> None:
    said = dist_train("estimate", own, "--gpus-per-node", "4", "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert (found["schema_version"], found["parameters"], found["notes"]) == (1, 8 * 16 + 16 + 16 * 2 + 2, [])
    first = found["rows"][0]
    assert (first["strategy"], first["mesh"], first["chosen"], first["micro_batch"]) == (
        "ddp",
        [["replicate", 4]],
        True,
        8,
    )
    rank = first["ranks"][0]
    assert (rank["parameters"], rank["gradients"], rank["optimizer"]) == (712, 712, 2 * 712 + 4 * 4)
    # The inputs, ReLU's output, log_softmax's, the targets, and the divisor of nll_loss.
    assert rank["activations"] == 8 * (4 * 8 + 4 * 16 + 4 * 2 + 8) + 4
    assert rank["peak"] > rank["parameters"] + rank["gradients"] + rank["optimizer"] + rank["activations"]


@pytest.mark.usefixtures("in_this_process")
def test_data_that_is_not_here_is_said(own: Path, dist_train: Any) -> None:
    said = dist_train("estimate", own, "data.train=my_model:Elsewhere", "--gpu-memory", "1G")
    assert said.code == 0, said.err
    assert "activations are not known: the training data could not be read: FileNotFoundError" in said.out
    assert ">= " in said.out
    assert "not known" in next(line for line in said.out.splitlines() if line.startswith("ddp *"))


@pytest.mark.proof
@pytest.mark.usefixtures("in_this_process")
def test_what_fits_nowhere_is_said(dist_train: Any) -> None:
    said = dist_train("estimate", DIGITS, "--gpu-memory", "1K")
    assert said.code == 0, said.err
    assert "at this size nothing fits into 1.0 KiB" in said.out
    assert "no number of ranks makes it fit" in said.out


@pytest.mark.usefixtures("in_this_process")
def test_a_mesh_that_the_ranks_do_not_fill(dist_train: Any) -> None:
    said = dist_train("estimate", DIGITS, "strategy=hsdp", "strategy.replicate=3", "--gpus-per-node", "4")
    assert (said.code, said.out) == (78, "")
    assert "strategy hsdp: replicate 3 on 4 ranks" in said.err


@pytest.mark.proof
def test_what_the_users_modules_print_is_no_part_of_the_answer(own: Path) -> None:
    done = in_a_process(own, "--json")
    assert (done.returncode, json.loads(done.stdout)["parameters"]) == (0, 178), done.stderr
    assert "data of the user's own" in done.stderr


@pytest.mark.proof
def test_an_error_of_the_users_own_model_is_shown(own: Path) -> None:
    (own.parent / "my_model.py").write_text(_DATA.replace("def Net(width=16):", _BROKEN))
    done = in_a_process(own)
    assert (done.returncode, done.stdout) == (78, "")
    assert "KeyError: 'no such layer'" in done.stderr
    assert "the estimate ended with exit code 1" in done.stderr


@pytest.mark.parametrize(
    ("size", "text"), [("80", "512M or 4G"), ("lots", "512M or 4G"), ("0G", "no memory")]
)
def test_a_size_that_is_none(dist_train: Any, size: str, text: str) -> None:
    said = dist_train("estimate", DIGITS, "--gpu-memory", size)
    assert (said.code, text in said.err) == (2, True), said.err


@pytest.mark.usefixtures("in_this_process")
def test_a_runs_own_config(make_run: Any, dist_train: Any) -> None:
    made = make_run("a-1")
    made.run.config.write_text(dump_config(load_config(DIGITS).config))
    said = dist_train("estimate", "a-1")
    assert said.code == 0, said.err
    assert said.out.startswith("ConvNet: 53,002 parameters")


def test_a_killed_process_is_said(dist_train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **kwargs: Any) -> Any:
        return subprocess.CompletedProcess(command, -9, "", None)

    monkeypatch.setattr(estimate_process.subprocess, "run", run)
    said = dist_train("estimate", DIGITS)
    assert (said.code, "ended by signal 9" in said.err, "more memory" in said.err) == (69, True, True)
