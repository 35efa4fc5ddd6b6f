"""`dist-train doctor` on a machine with a GPU: what NVML says of it, and a job that computes on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from warm_commands.warm_launch import launch_cli

from dist_train.cluster_check.gpu_state import read_gpus
from dist_train.cluster_check.node_facts import read_versions
from dist_train.jobs.gpus import visible_gpus

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


def test_the_driver_says_more_than_its_name() -> None:
    gpus = visible_gpus()
    facts = read_gpus(gpus)
    assert [each.uuid for each in facts] == [gpu.uuid for gpu in gpus]
    for each in facts:
        assert each.memory_total > 0
        assert not each.prohibited
        assert each.temperature is None or 0 < each.temperature < 120
        assert each.pcie_width is None or 1 <= each.pcie_width <= (each.pcie_width_most or each.pcie_width)
        rates = [link.rate for link in each.nvlinks if link.active]
        assert all(rate is None or 1e9 < rate < 1e12 for rate in rates), "bytes per second of one link"
    versions = read_versions("cuda")
    assert all(versions[name] for name in ("CUDA of torch", "NCCL", "driver", "CUDA of the driver"))


def test_a_job_on_the_gpus_of_this_machine(tmp_path: Path) -> None:
    done = launch_cli(["doctor", "--device", "cuda", "--json"], cwd=tmp_path, timeout_s=500)
    report = json.loads(done.stdout)
    errors = [one for one in report["findings"] if one["severity"] == "error"]
    assert (done.code, errors) == (0, []), done
    facts = report["facts"]
    assert facts["job"]["device"] == "cuda"
    assert facts["job"]["procs"] == len(visible_gpus())
    assert all(one["backend"] == "nccl" and not one["wrong"] for one in facts["all_reduces"])
