"""What `predict` reads and writes, and the whole of one prediction (with forked workers)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import dist_train as dt
from dist_train.config import dump_config, load_config
from dist_train.datasets.digits import Digits
from dist_train.errors import CheckpointError, CheckpointWriteError, ConfigError, NotFoundError
from dist_train.inference import BatchFailed
from dist_train.inference.input_batches import open_inputs
from dist_train.inference.predict_job import Prediction, predict
from dist_train.inference.result_files import open_output
from dist_train.models.convnet import ConvNet

DIGITS = Path(__file__).parents[3] / "examples" / "digits.yaml"


@pytest.fixture(autouse=True)
def _forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dt.Predictor, "start_method", "fork")


@pytest.fixture
def config() -> Any:
    return load_config(DIGITS).config


@pytest.fixture
def model() -> ConvNet:
    torch.manual_seed(3)
    return ConvNet(width=32, dropout=0.2).eval()


@pytest.fixture
def weights(tmp_path: Path, model: ConvNet) -> Path:
    dt.checkpoint.save_model(model, tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


def written(path: Path, *results: Any, targets: Any = None) -> None:
    with open_output(str(path)) as output:
        for result in results:
            rows = len(result["a"] if isinstance(result, dict) else result)
            output.add(result, targets, rows)


def test_a_folder_is_read_as_one_in_order_of_name(tmp_path: Path, config: Any) -> None:
    np.save(tmp_path / "b.npy", np.arange(6, 10, dtype=np.float32).reshape(4, 1))
    np.savez(tmp_path / "a.npz", x=np.arange(4, dtype=np.float32).reshape(4, 1))
    safetensors.torch.save_file({"x": torch.tensor([[4.0], [5.0]])}, tmp_path / "ab.safetensors")
    inputs = open_inputs(str(tmp_path), config)
    assert len(inputs) == 10
    batches = [batch.flatten().tolist() for batch, _ in inputs.batches(3)]
    assert batches == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    np.save(tmp_path / "c.npy", np.zeros((2, 3)))
    with pytest.raises(ConfigError, match=r"c\.npy holds float64 \(3,\) and .*a\.npz float32 \(1,\)"):
        open_inputs(str(tmp_path), config)


def test_a_data_set_of_the_config_with_its_targets(config: Any) -> None:
    inputs, digits = open_inputs("evaluation", config), Digits("evaluation")
    assert len(inputs) == len(digits) == 359
    images, labels = inputs.read(100, 104)
    assert torch.equal(images, digits.images[100:104])
    assert torch.equal(labels, digits.labels[100:104])


@pytest.mark.parametrize(
    ("word", "error", "text"),
    [
        ("nowhere.npy", NotFoundError, "no such file or folder"),
        ("two.npz", ConfigError, r"holds a, b\n.*two\.npz:a"),
        ("two.npz:c", ConfigError, "holds a, b, not 'c'"),
        ("pickled.npy", ConfigError, r"cannot be read: .*Python objects"),
        ("one.npy", ConfigError, "a single number"),
        ("none.npy", ConfigError, "holds no samples"),
        ("broken.npz", ConfigError, "cannot be read: .*zip"),
        ("pickled.npz", ConfigError, "cannot be read: .*allow_pickle"),
        ("words.npy", ConfigError, "<U1, which is no element type of torch"),
        ("swapped.npy", ConfigError, ">f4, which is no element type of torch"),
        ("text.csv", ConfigError, r"none of \.npy, \.npz, \.safetensors"),
        ("empty", NotFoundError, r"no \.npy"),
    ],
)
def test_inputs_that_cannot_be_read(
    tmp_path: Path, config: Any, word: str, error: type[Exception], text: str
) -> None:
    np.savez(tmp_path / "two.npz", a=np.zeros(2), b=np.zeros(2))
    np.save(tmp_path / "pickled.npy", np.array([print, 1], dtype=object), allow_pickle=True)
    np.save(tmp_path / "one.npy", np.float32(3))
    np.save(tmp_path / "none.npy", np.zeros((0, 3)))
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04")
    np.savez(tmp_path / "pickled.npz", a=np.array([print, 1], dtype=object))
    np.save(tmp_path / "words.npy", np.array(["a", "b"]))
    np.save(tmp_path / "swapped.npy", np.zeros(2, dtype=">f4"))
    (tmp_path / "text.csv").write_text("1,2")
    (tmp_path / "empty").mkdir()
    with pytest.raises(error, match=text):
        open_inputs(f"{tmp_path}/{word}", config)
    assert open_inputs(f"{tmp_path}/two.npz:b", config).read(0, 2)[0].shape == (2,)


def test_json_lines(tmp_path: Path) -> None:
    scores = {"a": torch.tensor([[1.0, float("inf")], [2.5, 0.0]]), "b": (torch.tensor([True, False]), "x")}
    written(tmp_path / "p.jsonl", scores, targets=torch.tensor([7, 8]))
    first, second = (json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines())
    assert first == {"index": 0, "output": {"a": [1.0, "inf"], "b": [True, "x"]}, "target": 7}
    assert (second["index"], second["output"]["a"]) == (1, [2.5, 0.0])


def test_arrays(tmp_path: Path) -> None:
    written(tmp_path / "p.npy", torch.zeros(2, 3), torch.ones(1, 3, dtype=torch.float32))
    assert np.load(tmp_path / "p.npy").tolist() == [[0, 0, 0], [0, 0, 0], [1, 1, 1]]
    written(tmp_path / "p.safetensors", {"a": torch.zeros(2), "b": torch.ones(2, 2)})
    found = safetensors.torch.load_file(tmp_path / "p.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == {"a": (2,), "b": (2, 2)}


@pytest.mark.parametrize(
    ("name", "results", "text"),
    [
        ("p.npy", [{"a": torch.zeros(2), "b": torch.zeros(2)}], "returns a, b, and a .npy file holds one"),
        ("p.npy", [torch.zeros(2, 3), torch.zeros(2, 4)], "rows of 2 shapes"),
        ("p.csv", [], "its suffix is not a known format"),
        ("there.npy", [torch.zeros(2)], "exists already"),
    ],
)
def test_outputs_that_cannot_be_written_leave_nothing(
    tmp_path: Path, name: str, results: list[Any], text: str
) -> None:
    (tmp_path / "there.npy").write_text("mine")
    with pytest.raises(ConfigError, match=text):
        written(tmp_path / name, *results)
    assert [path.name for path in tmp_path.iterdir()] == ["there.npy"]


def test_rows_that_are_no_samples(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"returned shape \(3,\) for 64 samples"),
        open_output(str(tmp_path / "p.jsonl")) as output,
    ):
        output.add(torch.zeros(3), None, 64)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("processes", [1, 2])
def test_a_prediction_is_what_the_model_says(
    tmp_path: Path, weights: Path, model: ConvNet, processes: int
) -> None:
    predict(Prediction(DIGITS, weights, "evaluation", str(tmp_path / "p.npy"), processes=processes))
    digits = Digits("evaluation")
    with torch.inference_mode():
        expected = torch.cat([model(part) for part in digits.images.split(64)])
    assert np.array_equal(np.load(tmp_path / "p.npy"), expected.numpy())


def test_json_of_a_prediction_holds_the_targets(tmp_path: Path, weights: Path, model: ConvNet) -> None:
    predict(Prediction(DIGITS, weights, "evaluation", str(tmp_path / "p.jsonl"), batch_size=100))
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    digits = Digits("evaluation")
    assert [row["index"] for row in rows] == list(range(359))
    assert [row["target"] for row in rows] == digits.labels.tolist()
    with torch.inference_mode():
        assert torch.allclose(torch.tensor([row["output"] for row in rows]), model(digits.images), atol=1e-5)


def test_precision_is_that_of_the_config(tmp_path: Path, weights: Path, model: ConvNet) -> None:
    half = load_config(DIGITS, ["trainer.precision=bf16"]).config
    (tmp_path / "half.yaml").write_text(dump_config(half))
    predict(Prediction(tmp_path / "half.yaml", weights, "evaluation", str(tmp_path / "p.safetensors")))
    found = safetensors.torch.load_file(tmp_path / "p.safetensors")["output"]
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        expected = torch.cat([model(part) for part in Digits("evaluation").images.split(64)])
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, expected)


def test_what_goes_wrong_leaves_no_output(tmp_path: Path, weights: Path) -> None:
    output = tmp_path / "out" / "p.jsonl"
    np.save(tmp_path / "x.npy", np.zeros((3, 5), dtype=np.float32))
    with pytest.raises(BatchFailed, match=r"batch 0 on cpu: .*image"):
        predict(Prediction(DIGITS, weights, str(tmp_path / "x.npy"), str(output)))
    other = tmp_path / "other.yaml"
    other.write_text(dump_config(load_config(DIGITS, ["model.args.width=8"]).config))
    with pytest.raises(CheckpointError, match="does not fit the model"):
        predict(Prediction(other, weights, "evaluation", str(output)))
    with pytest.raises(NotFoundError, match="there is no checkpoint in"):
        predict(Prediction(DIGITS, tmp_path / "out", "evaluation", str(output)))
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("name", ["p.npy", "p.jsonl", "p.safetensors"])
def test_a_full_disk_is_74_and_leaves_nothing(
    tmp_path: Path, fill_disk: Callable[[], None], name: str
) -> None:
    fill_disk()
    with pytest.raises(CheckpointWriteError, match=rf"{name} could not be written: File too large") as full:
        written(tmp_path / name, torch.zeros(3000, 3))
    assert full.value.exit_code == 74
    assert not list(tmp_path.iterdir())


def test_an_error_of_what_is_computed_is_not_taken_for_one_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gone\.png"), open_output(str(tmp_path / "p.jsonl")):
        (tmp_path / "gone.png").read_bytes()
    assert not list(tmp_path.iterdir())


def test_neither_a_link_to_nowhere_nor_a_dead_one_s_rest_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / f".p.npy.{os.getpid()}.tmp").write_text("of a process of this pid, killed before")
    written(tmp_path / "p.npy", torch.zeros(2))
    (tmp_path / "link.npy").symlink_to("nowhere.npy")
    with pytest.raises(ConfigError, match=r"link\.npy exists already"):
        written(tmp_path / "link.npy", torch.zeros(2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.npy", "p.npy"]


def test_what_lies_here_does_not_change_what_evaluation_means(
    tmp_path: Path, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evaluation").mkdir()
    np.save(tmp_path / "evaluation" / "x.npy", np.zeros((2, 3)))
    monkeypatch.chdir(tmp_path)
    assert open_inputs("evaluation", config).name.startswith("data.evaluation")
    assert len(open_inputs("./evaluation", config)) == 2


def test_a_file_of_float64_says_so_where_the_model_cannot_take_it(tmp_path: Path, weights: Path) -> None:
    np.save(tmp_path / "x.npy", Digits("evaluation").images[:2].double().numpy())
    with pytest.raises(BatchFailed, match=r"x\.npy holds float64, the model float32: .*astype\('float32'\)"):
        predict(Prediction(DIGITS, weights, str(tmp_path / "x.npy"), str(tmp_path / "p.npy")))


def test_a_model_that_began_with_a_file_s_weights_needs_that_file_no_more(
    tmp_path: Path, weights: Path, model: ConvNet
) -> None:
    args = "{model: convnet, weights: gone.pt, args: {width: 32}}"
    begun = load_config(DIGITS, [f"model={{target: pretrained, args: {args}}}"]).config
    (tmp_path / "begun.yaml").write_text(dump_config(begun))
    np.save(tmp_path / "x.npy", Digits("evaluation").images[:2].numpy())
    predict(Prediction(tmp_path / "begun.yaml", weights, str(tmp_path / "x.npy"), str(tmp_path / "p.npy")))
    assert len(np.load(tmp_path / "p.npy")) == 2
