"""load_model on what others write: torch.save, records around the weights, names with wrappers in front."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from checkpoint_cases import Tied, Training, manager
from torch import nn

import dist_train as dt
from dist_train.checkpoint.weights.import_weights import open_weights
from dist_train.checkpoint.weights.prefixes import drop_shared, fit_names
from dist_train.errors import CheckpointError, NotFoundError


class Net(nn.Module):
    """A part whose name ends in a wrapper's word, and one that is called like a wrapper."""

    def __init__(self) -> None:
        super().__init__()
        self.my_module = nn.Linear(2, 2)
        self.encoder = nn.ModuleDict({"module": nn.Linear(2, 2)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder["module"](self.my_module(x))


class WithExtra(nn.Linear):
    """A module that saves something that is no tensor."""

    def __init__(self, seen: int) -> None:
        super().__init__(2, 2)
        self.seen = seen

    def get_extra_state(self) -> Any:
        return {"seen": self.seen}

    def set_extra_state(self, state: Any) -> None:
        self.seen = state["seen"]


def same(one: nn.Module, other: nn.Module) -> bool:
    there, here = one.state_dict(), other.state_dict()
    return there.keys() == here.keys() and all(torch.equal(there[name], here[name]) for name in there)


def prefixed(model: nn.Module, prefix: str) -> dict[str, torch.Tensor]:
    return {prefix + name: tensor for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".ckpt", ".pth.tar", ""])
@pytest.mark.parametrize("new_format", [True, False])
def test_a_state_dict_of_torch_save(tmp_path: Path, suffix: str, new_format: bool) -> None:
    source, target = Net(), Net()
    path = tmp_path / f"w{suffix}"
    torch.save(source.state_dict(), path, _use_new_zipfile_serialization=new_format)
    dt.checkpoint.load_model(path, target)
    assert same(source, target)


def test_the_content_decides_not_the_suffix(tmp_path: Path) -> None:
    source = Net()
    safetensors.torch.save_file(source.state_dict(), tmp_path / "w.pt")
    torch.save(source.state_dict(), tmp_path / "w.safetensors")
    for name in ("w.pt", "w.safetensors"):
        target = Net()
        dt.checkpoint.load_model(tmp_path / name, target)
        assert same(source, target)


@pytest.mark.parametrize(
    ("wrap", "entry"),
    [
        (lambda state: {"epoch": 3, "best": torch.tensor(0.9), "state_dict": state}, "state_dict"),
        (lambda state: {"model": state, "optimizer": {"state": {}, "param_groups": []}}, "model"),
        (lambda state: {"model_state_dict": state, "loss": 0.1}, "model_state_dict"),
        (lambda state: {"model": {"state_dict": state, "args": [1]}}, "model/state_dict"),
        (lambda state: {"generator": state, "steps": 4}, "generator"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_weights_are_found_inside_a_record_and_where_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, wrap: Any, entry: str
) -> None:
    source, target = Net(), Net()
    torch.save(wrap(source.state_dict()), tmp_path / "w.pt")
    with caplog.at_level(logging.INFO):
        dt.checkpoint.load_model(tmp_path / "w.pt", target)
    assert same(source, target)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"loaded 4 tensors of {tmp_path}/w.pt (torch.save, entry '{entry}')")


def test_of_several_the_caller_chooses(tmp_path: Path) -> None:
    source, other, target = Net(), Net(), Net()
    torch.save({"model": other.state_dict(), "weights": source.state_dict()}, tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match=r"several names: 'model', 'weights'\n.*entry=\"model\""):
        dt.checkpoint.load_model(tmp_path / "w.pt", target)
    dt.checkpoint.load_model(tmp_path / "w.pt", target, entry="weights")
    assert same(source, target)
    with pytest.raises(CheckpointError, match=r"no entry 'ema'\n.*it has 'model', 'weights'"):
        dt.checkpoint.load_model(tmp_path / "w.pt", target, entry="ema")


@pytest.mark.parametrize(
    "prefix",
    ["module.", "_orig_mod.", "_orig_mod.module.", "module._orig_mod.module.", "_fsdp_wrapped_module."],
)
def test_leading_wrapper_names_go_and_that_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, prefix: str
) -> None:
    source, target = Net(), Net()
    torch.save(prefixed(source, prefix), tmp_path / "w.pt")
    with caplog.at_level(logging.INFO):
        dt.checkpoint.load_model(tmp_path / "w.pt", target)
    assert same(source, target)
    assert f"dropped leading '{prefix}' from 4 names" in caplog.text


@pytest.mark.proves(
    "Others' weights are opened without running code; only leading prefixes go; a flipped bit is noticed",
    limits="torch.save, safetensors and torch.distributed.checkpoint",
)
def test_only_leading_ones_and_only_as_many_as_fit() -> None:
    inside = ["my_module.weight", "encoder.module.weight"]
    assert fit_names(inside, inside).names == {name: name for name in inside}
    assert not fit_names(inside, ["my_weight"]).count
    # The model's own part is called `module`: one wrapper goes, its own name stays.
    averaged = ["module.module.w", "module.n_averaged"]
    kept = fit_names(averaged, ["module.w", "n_averaged"])
    assert list(kept.names.values()) == ["module.w", "n_averaged"]
    assert fit_names(["module.w", "n_averaged"], ["module.w", "n_averaged"]).count == 0
    # Where nothing fits, nothing is changed: the error then shows the names that are there.
    assert fit_names(["module.a"], ["b"]).names == {"module.a": "module.a"}
    with pytest.raises(CheckpointError, match=r"'module\.w' and 'w' both become 'w'"):
        fit_names(["module.w", "w", "module.b"], ["w", "b"])


def test_without_a_model_only_what_all_names_share_goes() -> None:
    assert drop_shared(["module.a.w", "module.b.w"]).names == {"module.a.w": "a.w", "module.b.w": "b.w"}
    assert drop_shared(["module._orig_mod.w", "module.module.b"]).dropped == ("module.",)
    assert drop_shared(["module.w", "n_averaged"]).count == 0
    assert drop_shared(["module.weight", "module.module.weight"]).count == 2


@pytest.mark.parametrize(
    "wrap",
    [nn.DataParallel, lambda model: torch.compile(model, backend="eager")],
    ids=["DataParallel", "compiled"],
)
def test_a_wrapped_model_takes_plain_and_wrapped_names(tmp_path: Path, wrap: Any) -> None:
    source = Net()
    torch.save(source.state_dict(), tmp_path / "plain.pt")
    torch.save(wrap(source).state_dict(), tmp_path / "wrapped.pt")
    for name in ("plain.pt", "wrapped.pt"):
        target = Net()
        dt.checkpoint.load_model(tmp_path / name, wrap(target))
        assert same(source, target)


def test_a_model_with_a_compiled_part(tmp_path: Path) -> None:
    def partly() -> nn.Module:
        return nn.Sequential(torch.compile(nn.Linear(2, 2), backend="eager"), nn.Linear(2, 2))

    source = partly()
    torch.save(source.state_dict(), tmp_path / "w.pt")
    assert "0._orig_mod.weight" in source.state_dict()
    target, plain = partly(), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for model in (target, plain):
        dt.checkpoint.load_model(tmp_path / "w.pt", model)
        assert torch.equal(model[0].weight, source[0].weight)


def test_tied_weights_stay_tied_and_what_is_no_tensor_comes_along(tmp_path: Path) -> None:
    source, target = Training().model, Tied()
    torch.save(source.state_dict(), tmp_path / "w.pt")
    dt.checkpoint.load_model(tmp_path / "w.pt", target)
    assert same(source, target)
    assert target.head.weight is target.emb.weight
    torch.save(WithExtra(7).state_dict(), tmp_path / "e.pt")
    extra = WithExtra(0)
    dt.checkpoint.load_model(tmp_path / "e.pt", extra)
    assert extra.seen == 7
    with pytest.raises(CheckpointError, match=r"has no such entry"):
        dt.checkpoint.load_model(tmp_path / "e.pt", nn.Linear(2, 2))
    path = manager(tmp_path / "ours").save(1, {"model": WithExtra(9)}).path
    dt.checkpoint.load_model(path, extra)
    assert extra.seen == 9


class Trap:
    """Unpickling it would make a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


@pytest.mark.proves(
    "Others' weights are opened without running code; only leading prefixes go; a flipped bit is noticed",
    limits="torch.save, safetensors and torch.distributed.checkpoint",
)
@pytest.mark.parametrize("new_format", [True, False])
def test_what_needs_pickle_is_refused_and_never_run(tmp_path: Path, new_format: bool) -> None:
    sprung = tmp_path / "sprung"
    record = {"state_dict": Net().state_dict(), "trap": Trap(sprung)}
    torch.save(record, tmp_path / "w.pt", _use_new_zipfile_serialization=new_format)
    with pytest.raises(CheckpointError, match=r"needs pickle \(.*mkdir.*\), which is refused") as refused:
        dt.checkpoint.load_model(tmp_path / "w.pt", Net())
    assert "runs whatever code the maker of the file put into it" in str(refused.value)
    assert "torch.load" in str(refused.value)
    assert not sprung.exists()


def test_a_variable_of_torch_cannot_talk_us_into_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    torch.save({"state_dict": Net().state_dict(), "args": argparse.Namespace(lr=1)}, tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match=r"needs pickle \(argparse\.Namespace\)"):
        dt.checkpoint.load_model(tmp_path / "w.pt", Net())


def test_a_whole_model_is_not_taken_for_a_state_dict(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "w.pt")
    with pytest.raises(
        CheckpointError, match=r"the whole model was saved, not its state_dict\(\)"
    ) as refused:
        dt.checkpoint.load_model(tmp_path / "w.pt", nn.Linear(2, 2))
    # The way out is a command that can be copied; here it is run, in this test's own folder.
    command = str(refused.value).partition("python -c '")[2].rpartition("'")[0].replace("'\"'\"'", "'")
    exec(command)
    dt.checkpoint.load_model("w-weights.pt", nn.Linear(2, 2))
    Path("w-weights.pt").unlink()


def flipped(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


@pytest.mark.proves(
    "Others' weights are opened without running code; only leading prefixes go; a flipped bit is noticed",
    limits="torch.save, safetensors and torch.distributed.checkpoint",
)
def test_a_flipped_bit_that_torch_load_does_not_notice(tmp_path: Path) -> None:
    path, source = tmp_path / "w.pt", nn.Linear(16, 16)
    torch.save(source.state_dict(), path)
    at = path.read_bytes().find(source.weight.detach().numpy().tobytes())
    flipped(path, at + 100)
    assert not torch.equal(torch.load(path)["weight"], source.weight)
    with pytest.raises(CheckpointError, match=r"damaged: its record .*data/0 is not what was written"):
        dt.checkpoint.load_model(path, nn.Linear(16, 16))


def test_a_file_without_check_sums_opens(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(Net().state_dict(), tmp_path / "w.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    dt.checkpoint.load_model(tmp_path / "w.pt", Net())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cannot be read as a file of torch.save: EOFError"),
        (b"<html>404</html>", "cannot be read as a file of torch.save"),
        (pickle.dumps({"a": 1}, protocol=4), "cannot be read as a file of torch.save"),
    ],
    ids=["empty", "a page", "a pickle"],
)
def test_what_is_no_file_of_torch_save(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "w.pt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=words):
        dt.checkpoint.load_model(path, Net())


def test_other_things_are_named_for_what_they_are(tmp_path: Path) -> None:
    torch.save(Net().state_dict(), tmp_path / "w.pt")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "w.pt").read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"cut\.pt cannot be read"):
        dt.checkpoint.load_model(tmp_path / "cut.pt", Net())
    torch.save([torch.zeros(2)], tmp_path / "list.pt")
    with pytest.raises(CheckpointError, match="holds a list, not weights by name"):
        dt.checkpoint.load_model(tmp_path / "list.pt", Net())
    torch.save({"epoch": 3, "lr": 0.1}, tmp_path / "none.pt")
    with pytest.raises(CheckpointError, match=r"no weights by name\n.*'epoch', 'lr'"):
        dt.checkpoint.load_model(tmp_path / "none.pt", Net())
    torch.jit.save(torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2)), tmp_path / "jit.pt")
    with pytest.raises(CheckpointError, match=r"TorchScript program[\s\S]*torch\.jit\.load"):
        dt.checkpoint.load_model(tmp_path / "jit.pt", nn.Linear(2, 2))


def test_folders_that_are_no_checkpoint_name_the_right_one(tmp_path: Path) -> None:
    path = manager(tmp_path / "run" / "checkpoints").save(3, Training().state).path
    for folder in (tmp_path / "run", tmp_path / "run" / "checkpoints"):
        with pytest.raises(NotFoundError, match=rf"did you mean {path}\?"):
            dt.checkpoint.load_model(folder, Tied())
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp" / ".metadata").write_bytes(b"")
    with pytest.raises(
        CheckpointError, match=r"dcp/\.metadata is not what torch\.distributed\.checkpoint writes"
    ):
        dt.checkpoint.load_model(tmp_path / "dcp", Tied())


def test_names_shapes_and_precision_that_do_not_fit(tmp_path: Path) -> None:
    state = nn.Sequential(nn.Linear(2, 3)).state_dict()
    torch.save({"module.0.wieght": state["0.weight"], "module.0.bias": state["0.bias"]}, tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match=r"missing '0\.weight' \(nearest: '0\.wieght'\); unexpected"):
        dt.checkpoint.load_model(tmp_path / "w.pt", nn.Sequential(nn.Linear(2, 3)))
    torch.save(state, tmp_path / "s.pt")
    with pytest.raises(CheckpointError, match=r"'0\.weight' is float32 \(3, 2\) there and float32 \(3, 4\)"):
        dt.checkpoint.load_model(tmp_path / "s.pt", nn.Sequential(nn.Linear(4, 3)))
    half = nn.Sequential(nn.Linear(2, 3)).half()
    with pytest.raises(CheckpointError, match=r"model\.to\(torch\.float32\), load, then .*torch\.float16"):
        dt.checkpoint.load_model(tmp_path / "s.pt", half)
    with torch.device("meta"):
        nowhere = nn.Sequential(nn.Linear(2, 3))
    with pytest.raises(CheckpointError, match=r"meta device[\s\S]*to_empty"):
        dt.checkpoint.load_model(tmp_path / "s.pt", nowhere)


def test_nothing_changes_when_it_does_not_fit(tmp_path: Path) -> None:
    target = Net()
    before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    state = Net().state_dict()
    del state["my_module.bias"]
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match=r"missing 'my_module\.bias'"):
        dt.checkpoint.load_model(tmp_path / "w.pt", target)
    assert all(torch.equal(before[name], tensor) for name, tensor in target.state_dict().items())


def test_no_flipped_bit_of_an_archive_gives_an_error_of_another_kind(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "w.pt")
    whole, path = (tmp_path / "w.pt").read_bytes(), tmp_path / "f.pt"
    directory = whole.rfind(b"PK\x01\x02", 0, whole.find(b"PK\x01\x02") + 1)
    for at in range(directory, len(whole), 23):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x84]) + whole[at + 1 :])
        try:
            dt.checkpoint.load_model(path, nn.Linear(2, 2))
        except CheckpointError as error:
            assert "f.pt" in str(error)  # noqa: PT017  # some bits mean nothing


def test_narrower_numbers_are_widened_and_that_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, target = Tied().bfloat16(), Tied()
    torch.save(source.state_dict(), tmp_path / "w.pt")
    with caplog.at_level(logging.INFO):
        dt.checkpoint.load_model(tmp_path / "w.pt", target)
    assert "widened bfloat16 to float32 in" in caplog.text
    assert same(source.float(), target)
    assert target.head.weight is target.emb.weight
    torch.save(target.state_dict(), tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match=r"float32 .* there and bfloat16"):
        dt.checkpoint.load_model(tmp_path / "w.pt", Tied().bfloat16())


def test_a_buffer_that_the_model_does_not_save_is_named_as_such(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    torch.save({**model.state_dict(), "mask": torch.ones(2)}, tmp_path / "w.pt")
    model.register_buffer("mask", torch.zeros(2), persistent=False)
    with pytest.raises(CheckpointError, match=r"'mask' is a buffer that this model makes itself"):
        dt.checkpoint.load_model(tmp_path / "w.pt", model)


def test_a_header_s_note_is_no_second_name_of_a_tensor_that_is_there(tmp_path: Path) -> None:
    tensors = {"a": torch.zeros(2), "b": torch.ones(2)}
    safetensors.torch.save_file(tensors, tmp_path / "w.safetensors", {"a": "b"})
    assert open_weights(tmp_path / "w.safetensors").tensors["a"].tolist() == [0, 0]


@pytest.mark.parametrize("name", ["w.pt", "folder"])
def test_what_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "w.pt").write_bytes(b"")

    def denied(path: Path, *words: object, **named: object) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "exists", denied)  # root may read everything
    with pytest.raises(NotFoundError, match=f"{name} may not be read: Permission denied"):
        dt.checkpoint.load_model(tmp_path / name, Net())
