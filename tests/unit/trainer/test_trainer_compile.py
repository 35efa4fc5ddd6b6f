"""`trainer.compile`: names, records and the bits of a resume stay; what does not fit is refused.

With the backend aot_eager, which needs no C++ compiler.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from block_cases import trained
from safetensors.torch import load_file
from test_trainer import config, hashes, start
from torch import nn

from dist_train.config.schema import CompileConfig
from dist_train.env import INJECT
from dist_train.errors import ConfigError
from dist_train.resilience.fault_injection import InjectedFault
from dist_train.rundir.directory import RunDir
from dist_train.rundir.metrics_file import read_metrics
from dist_train.testing import run_ranks
from dist_train.trainer.compiled_model import compiled

COMPILE = "trainer.compile={backend: aot_eager, fullgraph: true}"
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _settings_of_torch_stay() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=8, fail_on_recompile_limit_hit=False):
        yield
    torch._dynamo.reset()


def tensors(folder: Path) -> dict[str, Any]:
    newest = sorted(RunDir(folder).checkpoints.glob("step-*"))[-1]
    return load_file(newest / "model.safetensors")  # type: ignore[no-any-return]


@pytest.mark.proof
def test_a_compiled_run_keeps_names_and_records_and_resumes_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = start(tmp_path / "plain", config())
    torch._dynamo.reset()
    undisturbed = start(tmp_path / "one", config(COMPILE))
    assert tensors(tmp_path / "one").keys() == tensors(tmp_path / "plain").keys()
    assert undisturbed.metrics == pytest.approx(plain.metrics, rel=0.05)
    records = read_metrics(RunDir(tmp_path / "one").metrics)
    assert [one["step"] for one in records if one["kind"] == "train"] == [5, 10, 15, 20, 24]
    torch._dynamo.reset()
    monkeypatch.setenv(INJECT, "raise:rank=0,step=17")
    with pytest.raises(InjectedFault):
        start(tmp_path / "two", config(COMPILE))
    monkeypatch.delenv(INJECT)
    torch._dynamo.reset()
    assert hashes(start(tmp_path / "two", config(COMPILE), attempt=1)) == hashes(undisturbed)


def test_each_size_of_a_batch_has_a_program_of_its_own() -> None:
    sizes: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        sizes.append([one.shape[0] for one in inputs if type(one) is torch.Tensor and one.dim() == 2][-1])
        return graph.forward

    settings = CompileConfig.model_construct(backend=backend, mode="default", fullgraph=True, dynamic=False)
    model = compiled(nn.Linear(3, 2), settings, CPU)
    for rows in (*range(2, 14), 5, 2):  # torch's own limit is 8 programs
        model(torch.ones(rows, 3))
    assert sizes == list(range(2, 14))


def test_more_sizes_than_programs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dist_train.trainer.compiled_model._PROGRAMS", 1)
    model = compiled(nn.Linear(3, 2), CompileConfig(backend="eager"), CPU)
    with pytest.raises(Exception, match="recompile_limit"):
        list(map(model, [torch.ones(rows, 3) for rows in range(2, 14)]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("trainer.compile={backend: aot_eager, mode: reduce-overhead}", "a mode of the backend inductor"),
        ("trainer.compile={backend: tensorrt}", "tensorrt"),
        ("trainer.compile={mod: default}", "mod"),
    ],
)
def test_what_does_not_fit_is_refused_by_the_check_of_the_config(change: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(change)


def blocks(folder: Path, how: tuple[str, ...]) -> dict[str, Any]:
    torch._dynamo.reset()
    return trained(folder, how)


@pytest.mark.proof
@pytest.mark.multiprocess
@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.proof)])
def test_compiled_blocks_keep_names_and_losses_also_recomputed_and_sharded(
    tmp_path: Path, strategy: str
) -> None:
    by_block = "trainer.compile={backend: aot_eager, fullgraph: true, modules: auto}"
    chosen = {
        "plain": (),
        "compiled": (by_block,),
        "recomputed": (by_block, "trainer.activation_checkpointing={}"),
    }
    plain, compiled_, recomputed = (
        run_ranks(blocks, 2, 100, args=(tmp_path / name, (f"strategy={strategy}", *changes)))[0]
        for name, changes in chosen.items()
    )
    assert compiled_["losses"] == pytest.approx(plain["losses"], rel=1e-4)
    assert recomputed["losses"] == pytest.approx(plain["losses"], rel=1e-4)
    if strategy == "ddp":  # fsdp's checkpoint has its tensors elsewhere
        assert tensors(tmp_path / "compiled").keys() == tensors(tmp_path / "plain").keys()


def test_blocks_are_compiled_each_by_itself_also_those_of_torch_itself() -> None:
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    settings = CompileConfig.model_construct(
        backend=backend, mode="default", fullgraph=True, dynamic=False, modules=["Linear"]
    )
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2))
    plain = copy.deepcopy(model)
    assert compiled(model, settings, CPU) is model
    assert torch.equal(model(torch.ones(4, 3)), plain(torch.ones(4, 3)))
    assert len(graphs) == 2
    other = copy.deepcopy(model)
    nn.init.zeros_(other[0].weight)
    assert not torch.equal(other(torch.ones(4, 3)), model(torch.ones(4, 3)))


def test_a_module_to_compile_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.compile\.modules: 'Linaer' is neither"):
        compiled(nn.Sequential(nn.Linear(2, 2)), CompileConfig(backend="aot_eager", modules=["Linaer"]), CPU)


def test_dp_cannot_be_compiled() -> None:
    config("strategy=dp")
    with pytest.raises(ConfigError, match="dp copies the model"):
        config("strategy=dp", COMPILE)


@pytest.mark.proof
def test_a_missing_compiler_is_said_before_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match=r"no C\+\+ compiler \(no-such-compiler\)"):
        compiled(nn.Linear(2, 2), CompileConfig(), CPU)
    compiled(nn.Linear(2, 2), CompileConfig(backend="eager"), CPU)
    compiled(nn.Linear(2, 2), CompileConfig(), torch.device("cuda"))
