"""What the config's model and optimizer say of a strategy before any rank is started, without ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist

from dist_train.config import dump_config, load_config
from dist_train.estimate.model_check import respond

LANGUAGE_MODEL = Path(__file__).parents[3] / "examples" / "language_model.yaml"


class Plain(torch.optim.Optimizer):
    """An optimizer of one's own, which looks at values and takes no plain and spread tensors together."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    with torch.no_grad():
                        parameter.sub_(torch.full(parameter.shape, group["lr"]) * parameter.grad)


def check(strategy: str, *overrides: str, ranks: int = 4) -> tuple[int, str]:
    """The exit code and all that is said."""
    words = [f"strategy={strategy}", f"launch.gpus_per_node={ranks}", "trainer.accumulate=4", *overrides]
    resolved = load_config(LANGUAGE_MODEL, words)
    asked = {
        "config": dump_config(resolved.config),
        "world_size": ranks,
        "device": "cpu",
        "accumulate": 4,
        "forward": False,
    }
    code, answer = respond(asked)
    assert not torch_dist.is_initialized()
    return code, " ".join(str(value) for value in answer.values())


SPREAD = ["tensor_parallel", "fsdp", "hsdp", "fsdp_tensor_parallel"]


@pytest.mark.first_cases(5)
@pytest.mark.parametrize("strategy", SPREAD)
@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        ("{target: torch.optim:SGD, args: {lr: 0.1, fused: true}}", "leave optimizer.args.fused out"),
        ("{target: adamw, args: {lr: 0.1, fused: true}}", None),
        ("{target: torch.optim:SGD, args: {lr: 0.1, momentum: 0.9}}", None),
        ("{target: torch.optim:Rprop}", "SGD, Adam, AdamW and Adagrad of torch.optim can"),
        ("{target: test_estimate_model_check:Plain}", "or strategy ddp"),
        # What does not step plain parameters here either is not judged.
        ("{target: torch.optim:LBFGS}", None),
    ],
)
def test_an_optimizer_that_cannot_step_spread_parameters_is_refused(
    strategy: str, optimizer: str, said: str | None
) -> None:
    ranks = 4 if strategy != "tensor_parallel" else 2
    code, text = check(strategy, f"optimizer={optimizer}", ranks=ranks)
    assert code == (0 if said is None else 78), text
    if said is not None:
        assert f"strategy {strategy}: the optimizer" in text
        assert said in text


def test_a_stage_spreads_its_parameters_where_it_has_several_ranks() -> None:
    fused = "optimizer={target: torch.optim:SGD, args: {lr: 0.1, fused: true}}"
    assert check("pipeline", fused)[0] == 0
    code, text = check("pipeline", fused, "strategy.shard=2")
    assert (code, "strategy pipeline: the optimizer" in text) == (78, True), text


@pytest.mark.parametrize(
    ("strategy", "overrides", "said"),
    [
        ("fsdp", ["strategy.units=[Blok]"], "'Blok' is neither a class nor the name of a module"),
        ("hsdp", ["strategy.units=['layer.*']"], "'layer.*' is neither a class"),
        ("fsdp", ["strategy.units=[blocks]"], "'blocks' names 'blocks', a ModuleList"),
        ("fsdp", ["strategy.units=[head]"], "shared between units"),
        ("fsdp_tensor_parallel", ["strategy.units=[Blok]"], "'Blok' is neither a class"),
        ("split", ["strategy.map={'layer.*': 1}"], "'layer.*' is neither a class"),
        ("split", ["strategy.map={head: 1}"], "are one tensor"),
        ("split", ["strategy.devices=9"], "over 9 devices"),
        ("pipeline", ["strategy.split=[blocks.7, head, norm]"], "blocks.7"),
    ],
)
def test_names_that_name_no_module_and_ties_that_would_break_are_refused(
    strategy: str, overrides: list[str], said: str
) -> None:
    code, text = check(strategy, *overrides)
    assert (code, said in text) == (78, True), text
