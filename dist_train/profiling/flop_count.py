"""Floating-point operations of a trace's operators, from names and shapes; a multiply-add counts as two.

The formulas are those of torch.utils.flop_counter: matrix products, convolutions and fused attention, forward
and backward; an attention's backward counts the scores that it computes again. Everything else (elementwise,
norms, softmax) is not counted, nor are kernels that torch does not call as operators: Triton's and other
compilers', custom extensions. Recomputed activations are counted, for they are run.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from dist_train.profiling.intervals import Interval
from dist_train.profiling.step_parts import Event

Shape = Sequence[int]
_PRECISIONS = {
    "float": "fp32",
    "double": "fp64",
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
}
_FP8 = "c10::Float8"


@dataclass(frozen=True)
class FastFp32:
    """Whether products of fp32 are computed in TF32, as torch was set; on devices that have it."""

    matmul: bool = False
    convolution: bool = False


def count_flops(
    events: Iterable[Event], steps: Sequence[Interval], fast_fp32: FastFp32 = FastFp32()
) -> dict[str, int]:
    """Add up the operations of what was called in these steps, by precision (`bf16`, `tf32`, …).

    Of operators that call each other only the outermost is counted.
    """
    if not steps:
        return {}
    begin, end = steps[0][0], steps[-1][1]
    counted = [
        event
        for event in events
        if event.get("cat") == "cpu_op" and event.get("name") in _FORMULAS and begin <= event["ts"] < end
    ]
    found: dict[str, int] = defaultdict(int)
    for event in _outermost(counted):
        try:
            flops, precision = _of(event, fast_fp32)
        except (LookupError, TypeError, ValueError):
            continue  # another version's arguments, or shapes that were not recorded
        found[precision] += flops
    return dict(found)


def _outermost(events: Iterable[Event]) -> Iterable[Event]:
    until: dict[Any, float] = {}
    for event in sorted(events, key=lambda one: (one["ts"], -one["dur"])):
        if event["ts"] >= until.get(event.get("tid"), float("-inf")):
            until[event.get("tid")] = event["ts"] + event["dur"]
            yield event


def _of(event: Event, fast_fp32: FastFp32) -> tuple[int, str]:
    name, args = str(event["name"]), event["args"]
    formula, tensor = _FORMULAS[name]
    kind = str(args["Input type"][tensor])
    precision = "fp8" if kind.startswith(_FP8) else _PRECISIONS.get(kind, kind)
    fast = fast_fp32.convolution if "convolution" in name else fast_fp32.matmul
    return formula(args), "tf32" if precision == "fp32" and fast else precision


def _matrix_product(at: int) -> Callable[[Mapping[str, Any]], int]:
    """2 * m * k * n, times the batch; the two matrices are arguments `at` and `at + 1`."""

    def flops(args: Mapping[str, Any]) -> int:
        left, right = args["Input Dims"][at], args["Input Dims"][at + 1]
        return 2 * int(prod(left)) * int(right[-1])

    return flops


def _convolution(args: Mapping[str, Any]) -> int:
    given, weight = args["Input Dims"][:2]
    stride, padding, dilation, transposed = (_concrete(args, at) for at in (3, 4, 5, 6))
    sizes = given[2:]
    if not transposed:
        sizes = [
            (size + 2 * _at(padding, i) - _at(dilation, i) * (kernel - 1) - 1) // _at(stride, i) + 1
            for i, (size, kernel) in enumerate(zip(given[2:], weight[2:], strict=True))
        ]
    return 2 * int(given[0]) * int(prod(sizes)) * int(prod(weight))


def _convolution_backward(args: Mapping[str, Any]) -> int:
    out, given, weight = args["Input Dims"][:3]
    transposed, mask = _concrete(args, 7), _concrete(args, 10)
    sizes = (given if transposed else out)[2:]
    return 2 * int(given[0]) * int(prod(sizes)) * int(prod(weight)) * sum(bool(wanted) for wanted in mask[:2])


def _attention(at: int, products: int) -> Callable[[Mapping[str, Any]], int]:
    """So many matrix products: half of them, rounded down, have the value's width, the others the query's."""

    def flops(args: Mapping[str, Any]) -> int:
        query, key, value = args["Input Dims"][at : at + 3]
        batch, heads, queries, width = query
        scores = 2 * batch * heads * queries * int(key[2])
        by_value = products // 2
        return int(scores * (width * (products - by_value) + int(value[3]) * by_value))

    return flops


def _concrete(args: Mapping[str, Any], at: int) -> Any:
    """An argument that is no tensor, as it is printed: `[1, 1]`, `False`."""
    return json.loads(str(args["Concrete Inputs"][at]).lower())


def _at(values: Sequence[int], number: int) -> int:
    return int(values[number] if len(values) > 1 else values[0])


# Operator -> its formula, and the argument whose type is the precision.
_FORMULAS: dict[str, tuple[Callable[[Mapping[str, Any]], int], int]] = {
    "aten::mm": (_matrix_product(0), 0),
    "aten::addmm": (_matrix_product(1), 1),
    "aten::_addmm_activation": (_matrix_product(1), 1),
    "aten::bmm": (_matrix_product(0), 0),
    "aten::baddbmm": (_matrix_product(1), 1),
    "aten::_scaled_mm": (_matrix_product(0), 0),
    "aten::convolution": (_convolution, 0),
    "aten::convolution_backward": (_convolution_backward, 0),
    **{
        f"aten::_scaled_dot_product_{kind}": (_attention(0, 2), 0)
        for kind in (
            "flash_attention",
            "efficient_attention",
            "cudnn_attention",
            "flash_attention_for_cpu",
        )
    },
    **{
        f"aten::_scaled_dot_product_{kind}_backward": (_attention(1, 5), 1)
        for kind in (
            "flash_attention",
            "efficient_attention",
            "cudnn_attention",
            "flash_attention_for_cpu",
        )
    },
}
