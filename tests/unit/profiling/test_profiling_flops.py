"""Operations counted from a trace are those that torch counts while it runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from made_traces import operator, product, step
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from dist_train.profiling.flop_count import FastFp32, count_flops
from dist_train.profiling.step_parts import step_intervals


def attention() -> torch.Tensor:
    q, k, v = (torch.randn(2, 3, length, 8, requires_grad=True) for length in (16, 32, 32))
    return scaled_dot_product_attention(q, k, v).sum()


def transformer_layer() -> torch.Tensor:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    with sdpa_kernel(SDPBackend.MATH):  # torch's counter knows no fused attention on CPU
        return layer(torch.randn(2, 10, 16, requires_grad=True)).sum()


def through(module: nn.Module, *shape: int) -> Callable[[], torch.Tensor]:
    return lambda: module(torch.randn(*shape, requires_grad=True)).sum()


CASES: dict[str, Callable[[], torch.Tensor]] = {
    "linear": through(nn.Linear(7, 5), 4, 7),
    "linear of three dimensions": through(nn.Linear(7, 5, bias=False), 2, 4, 7),
    "batched product": lambda: (torch.randn(3, 4, 5, requires_grad=True) @ torch.randn(3, 5, 6)).sum(),
    "convolution": through(nn.Conv2d(3, 8, 3, stride=2, padding=1, dilation=2), 4, 3, 19, 17),
    "convolution of one dimension": through(nn.Conv1d(4, 6, 5, padding=2), 2, 4, 30),
    "transposed convolution": through(nn.ConvTranspose2d(3, 4, 3, stride=2), 2, 3, 9, 9),
    "transformer layer": transformer_layer,
}


def traced(work: Callable[[], torch.Tensor], folder: Path) -> list[dict[str, Any]]:
    with torch.profiler.profile(record_shapes=True) as profile, torch.profiler.record_function("work"):
        work().backward()
    profile.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    [whole] = [event for event in events if event["name"] == "work" and event.get("cat") == "user_annotation"]
    return [*events, {**whole, "name": "ProfilerStep#1"}]


@pytest.mark.parametrize("name", CASES)
def test_they_are_those_of_torchs_own_counter(name: str, tmp_path: Path) -> None:
    work = CASES[name]
    with FlopCounterMode(display=False) as counter:
        work().backward()
    events = traced(work, tmp_path)
    expected = counter.get_total_flops()
    assert expected > 0
    assert count_flops(events, step_intervals(events)) == {"fp32": expected}


def test_fused_attention_is_counted_by_torchs_formulas(tmp_path: Path) -> None:
    query, key = (2, 3, 16, 8), (2, 3, 32, 8)
    expected = sdpa_flop_count(query, key, key) + sdpa_backward_flop_count(query, query, key, key)
    events = traced(attention, tmp_path)
    assert count_flops(events, step_intervals(events)) == {"fp32": expected}


def test_the_precision_is_that_of_the_factors(tmp_path: Path) -> None:
    layer = nn.Linear(7, 5)

    def work() -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return layer(torch.randn(4, 7)).float().sum()

    events = traced(work, tmp_path)
    assert count_flops(events, step_intervals(events)) == {"bf16": 2 * 2 * 4 * 7 * 5}


def test_fp32_is_tf32_where_torch_was_set_so() -> None:
    events = [step(1, 0, 10), product(1, 2, [2, 3], [3, 4]), product(3, 4, [2, 3], [3, 4], "c10::Half")]
    steps = step_intervals(events)
    assert count_flops(events, steps) == {"fp32": 48, "fp16": 48}
    assert count_flops(events, steps, FastFp32(matmul=True)) == {"tf32": 48, "fp16": 48}
    assert count_flops(events, steps, FastFp32(convolution=True)) == {"fp32": 48, "fp16": 48}


def test_what_an_operator_calls_is_not_counted_again_and_odd_arguments_are_left_out() -> None:
    outer = {**product(1, 5, [2, 3], [3, 4]), "name": "aten::addmm"}
    outer["args"] = {"Input Dims": [[4], [2, 3], [3, 4]], "Input type": ["float"] * 3}
    events = [step(1, 0, 10), outer, product(2, 4, [2, 3], [3, 4]), operator("aten::mm", 6, 7)]
    assert count_flops(events, step_intervals(events)) == {"fp32": 48}
    assert count_flops(events, []) == {}
