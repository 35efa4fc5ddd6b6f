"""Where the time of steps went, from made traces."""

from __future__ import annotations

import pytest
from made_traces import Event, collective, data_wait, kernel, operator, span, step

from dist_train.profiling.step_parts import StepParts, step_intervals, step_parts


def parts_of(events: list[Event], complete: int | None = None) -> StepParts:
    return step_parts(events, step_intervals(events, complete))


def in_us(parts: StepParts) -> list[int]:
    seconds = (parts.compute_s, parts.communication_s, parts.data_wait_s, parts.stall_s)
    return [round(one * 1e6) for one in seconds]


def test_on_cpu_each_moment_is_data_wait_compute_communication_or_stall_in_this_order() -> None:
    events = [
        step(1, 0, 100),
        data_wait(0, 20),
        operator("aten::stack", 5, 15),  # the loader's own
        operator("autograd::engine::evaluate_function: AddmmBackward0", 30, 70),
        operator("AddmmBackward0", 30, 60),
        operator("aten::mm", 32, 58),
        operator("c10d::allreduce_", 60, 62),
        collective(50, 80),
    ]
    parts = parts_of(events)
    assert in_us(parts) == [30, 20, 20, 30]
    assert round(parts.hidden_communication_s * 1e6) == 10
    assert (parts.steps, parts.on_device, round(parts.step_s * 1e6)) == (1, False, 100)


def test_on_a_gpu_kernels_are_compute_and_what_they_overlap_with_is_hidden() -> None:
    events = [
        step(1, 0, 100),
        data_wait(0, 30),
        operator("aten::mm", 30, 35),  # its launch
        kernel("ampere_sgemm_128x64", 10, 50),
        kernel("Memcpy HtoD (Pinned -> Device)", 5, 10, "gpu_memcpy"),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 40, 70),
        span("gpu_user_annotation", "nccl:all_reduce", 40, 70),
    ]
    parts = parts_of(events)
    assert in_us(parts) == [45, 20, 5, 30]
    assert (parts.on_device, round(parts.hidden_communication_s * 1e6)) == (True, 10)


def test_only_complete_steps_count_and_what_is_outside_of_them_does_not() -> None:
    events = [
        operator("aten::mm", 0, 60),  # of the warm-up, into the first step
        step(1, 50, 100),
        step(2, 100, 150),
        step(3, 150, 170),  # cut off by a stop
        operator("aten::mm", 140, 165),
    ]
    parts = parts_of(events, complete=2)
    assert (parts.steps, in_us(parts)) == (2, [20, 0, 0, 80])
    assert parts_of(events).steps == 3


def test_a_loop_with_a_source_of_its_own_can_mark_its_data_wait() -> None:
    events = [step(1, 0, 100), span("user_annotation", "data wait", 10, 40)]
    assert in_us(parts_of(events)) == [0, 0, 30, 70]


def test_a_trace_without_steps_has_no_time() -> None:
    parts = parts_of([operator("aten::mm", 0, 60)])
    assert (parts.steps, parts.whole_s, parts.step_s) == (0, 0.0, 0.0)


@pytest.mark.parametrize("device", [False, True])
def test_the_parts_add_up_to_the_whole(device: bool) -> None:
    events = [step(1, 0, 97), data_wait(3, 20), operator("aten::mm", 15, 44), collective(30, 61)]
    events += [kernel("gemm", 50, 90), kernel("ncclKernel", 80, 96)] if device else []
    parts = parts_of(events)
    assert sum(in_us(parts)) == 97
    assert parts.on_device is device
