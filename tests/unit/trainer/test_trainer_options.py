"""Options of the trainer: a plateau schedule, parameter groups, memory format, precision of float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_trainer import config, hashes, start
from torch import Tensor, nn

from dist_train.env import INJECT
from dist_train.errors import ConfigError
from dist_train.resilience.fault_injection import InjectedFault
from dist_train.rundir.directory import RunDir
from dist_train.rundir.metrics_file import read_metrics
from dist_train.trainer.callbacks.early_stopping import EarlyStopping
from dist_train.trainer.run_training import set_up_process

PLATEAU = (
    "schedule={target: plateau, args: {metric: accuracy, mode: max, patience: 0, factor: 0.5, threshold: 9}}"
)


def test_a_plateau_is_stepped_by_the_evaluation_and_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = (PLATEAU, "trainer.epochs=4")  # by its threshold nothing is an improvement
    undisturbed = start(tmp_path / "one", config(*changes))
    records = read_metrics(RunDir(tmp_path / "one").metrics)
    rates = [record["lr"] for record in records if record["kind"] == "eval"]
    assert rates == [0.01, 0.01, 0.005, 0.0025]
    monkeypatch.setenv(INJECT, "raise:rank=0,step=40")
    with pytest.raises(InjectedFault):
        start(tmp_path / "two", config(*changes))
    monkeypatch.delenv(INJECT)
    assert hashes(start(tmp_path / "two", config(*changes), attempt=1)) == hashes(undisturbed)


def test_a_plateau_without_an_evaluation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="follows a metric of the evaluation, and there is none"):
        start(tmp_path / "run", config(PLATEAU, "data.evaluation=null", "metrics=[]"))


def test_groups_of_parameters_are_trained_with_their_options_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = "parameter_groups=[{parameters: ['*.bias'], modules: ['*Norm*'], args: {lr: 0.0}}]"
    result = start(tmp_path / "one", config(groups))
    saved = [
        load_file(RunDir(tmp_path / "one").checkpoints / f"step-{n}" / "model.safetensors")
        for n in ("00000021", "00000024")
    ]
    frozen = {name for name in saved[0] if torch.equal(saved[0][name], saved[1][name])}
    assert frozen == {name for name in saved[0] if name.endswith("bias") or saved[0][name].dim() == 1} - {
        name for name in saved[0] if "running" in name
    }
    monkeypatch.setenv(INJECT, "raise:rank=0,step=17")
    with pytest.raises(InjectedFault):
        start(tmp_path / "two", config(groups))
    monkeypatch.delenv(INJECT)
    assert hashes(start(tmp_path / "two", config(groups), attempt=1)) == hashes(result)


def test_channels_last_reaches_weights_and_inputs_and_changes_no_result(tmp_path: Path) -> None:
    seen: list[tuple[bool, bool]] = []
    forward = nn.Conv2d.forward

    def looked_at(self: nn.Conv2d, inputs: Tensor) -> Tensor:
        seen.append(
            tuple(one.is_contiguous(memory_format=torch.channels_last) for one in (self.weight, inputs))
        )  # type: ignore[arg-type]
        return forward(self, inputs)

    plain = start(tmp_path / "plain", config("trainer.epochs=1"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Conv2d, "forward", looked_at)
        nhwc = start(tmp_path / "nhwc", config("trainer.epochs=1", "trainer.channels_last=true"))
    assert set(seen) == {(True, True)}
    assert nhwc.metrics == pytest.approx(plain.metrics, rel=1e-3)


def test_the_precision_of_float32_is_set_from_the_config() -> None:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        set_up_process(config("trainer.matmul_precision=high", "trainer.conv_tf32=false"))
        assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("high", False)
        set_up_process(config())
        assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("highest", True)
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


@pytest.mark.parametrize("args", [{"patience": "3"}, {"patience": 1.5}, {"min_delta": "0.1"}])
def test_early_stopping_names_a_number_that_is_none(args: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="EarlyStopping: patience="):
        EarlyStopping(**args)
