"""Trace files, the peaks of devices, and what a whole trace says."""

from __future__ import annotations

import errno
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from made_traces import data_wait, operator, product, step

from dist_train.errors import ConfigError, NotFoundError
from dist_train.profiling import trace_file
from dist_train.profiling.device_peaks import device_peaks, utilisation
from dist_train.profiling.trace_file import compress_trace, export_path, find_traces, read_trace, trace_path
from dist_train.profiling.trace_summary import summarise
from dist_train.rundir import RunDir

EVENTS = [
    step(1, 0, 1000),
    data_wait(0, 100),
    operator("aten::linear", 200, 700),
    product(250, 650, [100, 200], [200, 300], "c10::Half"),
    step(2, 1000, 2000),
    product(1250, 1650, [100, 200], [200, 300], "c10::Half"),
]
PRODUCT = 2 * 100 * 200 * 300


def trace(device: str, **facts: Any) -> dict[str, Any]:
    known = {"device": device, "first": 11, "complete": 2, **facts}
    return {"dist_train": known, "traceEvents": EVENTS, "traceName": "x"}


def test_a_summary_has_parts_operations_and_the_operators_own_times() -> None:
    found = summarise(trace("NVIDIA A100-SXM4-80GB"), 3)
    assert (found.rank, found.first, found.steps, found.flops) == (3, 11, 2, {"fp16": 2 * PRODUCT})
    assert found.flops_per_step == PRODUCT
    assert found.mfu.fraction == pytest.approx(2 * PRODUCT / 312e12 / 2000e-6)
    tops = [(one.name, round(one.seconds * 1e6), one.calls) for one in found.top]
    assert tops == [("aten::mm", 800, 2), ("aten::linear", 100, 1)]
    record = json.loads(json.dumps(found.to_record()))
    parts = [record[f"{part}_s"] for part in ("compute", "communication", "data_wait", "stall")]
    assert sum(parts) == pytest.approx(record["seconds"]) == pytest.approx(0.002)


def test_without_a_known_peak_there_is_no_utilisation_and_a_reason() -> None:
    found = summarise(trace("this CPU"), 0)
    assert (found.mfu.fraction, found.mfu.why_not) == (None, "the peak of this CPU is not known")
    assert utilisation("Tesla T4", {"bf16": 1}, 1.0).why_not == "the peak of Tesla T4 in bf16 is not known"
    assert "no matrix product" in utilisation("Tesla T4", {}, 1.0).why_not
    assert utilisation("Tesla T4", {"tf32": 81 * 10**10}, 1.0).fraction == pytest.approx(0.1)  # it has none
    mixed = utilisation("NVIDIA H100 80GB HBM3", {"bf16": 989 * 10**9, "tf32": 494 * 10**9}, 0.01)
    assert mixed.fraction == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("name", "tera"),
    [
        ("Tesla V100-SXM2-32GB", 125),
        ("Tesla V100-PCIE-16GB", 112),
        ("NVIDIA A100-PCIE-40GB", 312),
        ("NVIDIA A10", 125),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H200", 989),
        ("NVIDIA H200 NVL", 835),
        ("NVIDIA B200", 2250),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("AMD Instinct MI250X", 191.5),
        ("AMD Instinct MI300X", 1307.4),
        ("Tesla T4", 65),
    ],
)
def test_a_gpu_is_known_by_the_name_that_torch_gives(name: str, tera: float) -> None:
    peaks = device_peaks(name)
    assert peaks is not None
    assert peaks["fp16"] == pytest.approx(tera * 1e12)


@pytest.mark.parametrize(
    "name", ["NVIDIA A10G", "NVIDIA L40", "NVIDIA GH200 480GB", "NVIDIA A100X", "NVIDIA H20", "this CPU", ""]
)
def test_a_similar_name_is_another_gpu(name: str) -> None:
    assert device_peaks(name) is None


def test_a_trace_is_written_whole_and_found_by_attempt_and_rank(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for attempt, rank in ((10, 1), (2, 11), (2, 3)):
        path = trace_path(run, attempt, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        with export_path(path, 3) as raw:
            raw.write_text(json.dumps(trace("this CPU", rank=rank)))
            compress_trace(raw, path)
    (run.profile / "attempt-2" / ".rank-5.trace.json.gz.17.raw").write_text("{")
    found = find_traces(run)
    assert [(attempt, list(ranks)) for attempt, ranks in found.items()] == [(2, [3, 11]), (10, [1])]
    assert read_trace(found[2][11])["dist_train"]["rank"] == 11


def test_a_trace_cut_off_by_torch_or_a_full_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, raw = tmp_path / "rank-0.trace.json.gz", tmp_path / "raw"
    text = json.dumps(trace("this CPU"))
    raw.write_text(text[: len(text) // 2])
    with pytest.raises(OSError, match="torch exported only"):
        compress_trace(raw, path)
    raw.write_text(text)

    def full(descriptor: int, piece: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("dist_train.rundir.durable_files.os.write", full)
        with pytest.raises(OSError, match="No space left"):
            compress_trace(raw, path)
    assert [each.name for each in tmp_path.iterdir()] == ["raw"]
    assert trace_file.FACTS == "dist_train"


def test_a_damaged_trace_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.trace.json.gz"
    with pytest.raises(NotFoundError):
        read_trace(path)
    for payload in (
        b"",
        b"no gzip",
        gzip.compress(b"{"),
        gzip.compress(b"[]"),
        gzip.compress(b"{}" * 9)[:-4],
    ):
        path.write_bytes(payload)
        with pytest.raises(ConfigError, match=r"rank-0\.trace\.json\.gz cannot be read"):
            read_trace(path)
