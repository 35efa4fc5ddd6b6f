"""Which GPU each rank has: rank 0 records it, mismatched ones are refused. The GPUs are simulated."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

import dist_train as dt
from dist_train.distributed import cuda_visible_devices, device_map, devices
from dist_train.distributed.control_group import Control
from dist_train.distributed.cuda_visible_devices import change_warning, value_at_start
from dist_train.distributed.membership_check import Handshake, unlike_devices
from dist_train.env import RankInfo
from dist_train.errors import ConfigError
from dist_train.jobs.gpus import Gpu, Inventory
from dist_train.rundir.device_record import RankDevice, read_devices
from dist_train.rundir.directory import RunDir

UUID = "5e1f0000-0000-0000-0000-000000000003"


def test_rank_to_visible_to_physical_to_uuid(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    facts = SimpleNamespace(uuid=UUID, name="H100")  # torch gives the UUID without its `GPU-`
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
    machine = [Gpu(index, f"GPU-{UUID[:-1]}{index}", "H100", 0, 80, f"bus {index}") for index in range(4)]
    monkeypatch.setattr(device_map, "physical_gpus", lambda: machine)
    run = RunDir(tmp_path)
    run.create()
    attempt = run.begin_attempt()
    info = RankInfo.from_env({})
    device_map.record_devices(Control(), info, torch.device("cuda", 1), tmp_path, attempt)
    (device,) = read_devices(run, attempt)
    assert (device.rank, device.visible_index, device.physical_index) == (0, 1, "3")
    assert (device.uuid, device.bus_id) == (f"GPU-{UUID}", "bus 3")
    assert str(device).endswith(f": cuda:1 = GPU 3, GPU-{UUID}, H100")
    # Without the driver's library the physical index is unknown, and shown as such.
    monkeypatch.setattr(device_map, "physical_gpus", list)
    device_map.record_devices(Control(), info, torch.device("cuda", 1), tmp_path, attempt)
    assert "cuda:1 = GPU ?" in str(read_devices(run, attempt)[0])


def test_on_cpu_there_is_no_record(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.create()
    attempt = run.begin_attempt()
    device_map.record_devices(Control(), RankInfo.from_env({}), torch.device("cpu"), tmp_path, attempt)
    assert not run.attempt_devices(attempt).exists()
    assert read_devices(run, attempt) == ()


@pytest.mark.multiprocess
def test_rank_0_writes_the_devices_of_all_ranks(ranks: Any, tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.create()
    (run_dir.attempts / "4").mkdir()
    facts = {"RUN_ID": "r", "ATTEMPT": 4, "NODE_RANK": 0, "NNODES": 1, "RUN_DIR": run_dir.path}
    environ = {f"DIST_TRAIN_{name}": str(value) for name, value in facts.items()}

    def begin(rendezvous: str) -> int:
        def pretend(info: RankInfo, device: torch.device) -> dict[str, Any]:
            return vars(
                RankDevice(info.rank, 0, "here", info.local_rank, str(7 - info.rank), "GPU-x", "H100")
            )

        device_map._own_record = pretend
        device_map._is_recorded = lambda device: True
        with dt.init(device="cpu", init_method=rendezvous, timeout_s=20) as run:
            return run.rank

    assert ranks(2, begin, environ=environ) == [0, 1]
    recorded = [(d.rank, d.visible_index, d.physical_index) for d in read_devices(run_dir, 4)]
    assert recorded == [(0, 0, "7"), (1, 1, "6")]


def handshake(gpu: str | None) -> Handshake:
    return Handshake("node-a", "1", 2, gpu, None)


def test_mismatched_devices_are_refused() -> None:
    assert unlike_devices([handshake("a"), handshake("b")]) is None
    assert unlike_devices([handshake(None), handshake(None)]) is None
    verdict = unlike_devices([handshake("a"), handshake(None), handshake("b")])
    assert verdict is not None
    assert verdict.what == "rank 1 would compute on the CPU, the others on GPUs (node-a shows none)"
    assert "--device cpu" in verdict.hint
    shared = unlike_devices([handshake("a"), handshake("a")])
    assert shared is not None
    assert "use the same GPU a of node-a" in shared.what


@pytest.mark.parametrize(
    ("before", "now", "started", "text"),
    [
        ("0,1", "0,1", True, None),
        (None, None, False, None),
        ("GPU-a", "3", True, "is '3', and was 'GPU-a' when this process started; CUDA has started already"),
        ("GPU-a", "3", False, "are not those that the launcher gave this rank"),
        (None, "0", True, "was not set when"),
        ("0", None, True, "is not set, and was '0'"),
    ],
)
def test_a_changed_cuda_visible_devices_is_warned_about(
    before: str | None, now: str | None, started: bool, text: str | None
) -> None:
    warning = change_warning(before, now, started)
    if text is None:
        assert warning is None
    else:
        assert warning is not None
        assert text in warning
        assert "--gpus" in warning


def test_the_value_at_start_is_read_from_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    before = value_at_start()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-set-later")
    assert value_at_start() == before != "GPU-set-later"

    def denied(process: psutil.Process) -> dict[str, str]:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "environ", denied)
    assert value_at_start() == "GPU-set-later"


def test_dt_init_warns(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")  # this process was started with another value
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)  # as if
    with dt.init(device="auto"):
        pass
    assert "CUDA_VISIBLE_DEVICES is '5'" in caplog.text
    caplog.clear()
    with dt.init(device="cpu"):
        pass
    assert not caplog.text


def test_a_single_process_may_choose_its_gpu_before_cuda_starts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The tutorials' `os.environ["CUDA_VISIBLE_DEVICES"] = "5"` on the first line is fine in one process."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    cuda_visible_devices.warn_if_changed(alone=True)
    assert not caplog.text
    cuda_visible_devices.warn_if_changed(alone=False)
    assert "all ranks may share one" in caplog.text


def test_a_mig_slice_is_identified_by_its_own_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks on two MIG slices of a GPU are not two ranks on one GPU."""
    card = SimpleNamespace(uuid=UUID, name="H100 MIG 1g.10gb")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    slices = [Gpu(0, f"MIG-{name}", "H100 MIG", 0, 10, slice=i) for i, name in enumerate("ab")]
    monkeypatch.setattr(device_map, "physical_gpus", lambda: slices)
    handshakes = []
    for name in "ab":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"MIG-{name}")
        handshakes.append(handshake(devices.unique_id(torch.device("cuda", 0))))
    assert unlike_devices(handshakes) is None
    mine = device_map._own_record(RankInfo.from_env({}), torch.device("cuda", 0))
    assert mine is not None
    assert (mine["physical_index"], mine["uuid"]) == ("0:1", "MIG-b")


def test_an_amd_gpu_is_found_by_the_unique_id_that_hip_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """HIP's UUID is the id's 16 characters as bytes: torch shows their codes. No GPU is here."""
    unique = "9a7e8f2900ad2d0a"
    codes = unique.encode().hex()
    shown = "-".join((codes[:8], codes[8:12], codes[12:16], codes[16:20], codes[20:]))
    cards = [Gpu(0, "GPU-000000000000001b", "MI250X", 0, 64), Gpu(1, f"GPU-{unique}", "MI250X", 0, 64)]
    monkeypatch.setattr(device_map, "physical_gpus", lambda: cards)
    assert device_map._physical(shown) == cards[1]
    assert device_map._physical(UUID) is None


def test_without_a_gpu_the_reason_names_the_build_and_amds_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch's build for ROCm answers on a node whose variables leave no GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(devices, "inventory", Inventory)
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    monkeypatch.delenv("HIP_VISIBLE_DEVICES", raising=False)
    with pytest.raises(ConfigError) as refused:
        devices.bind("cuda", RankInfo.from_env({}))
    assert refused.value.cause == "none is left by ROCR_VISIBLE_DEVICES=2, CUDA_VISIBLE_DEVICES=2"
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.version, "cuda", None)
    here = Inventory(reason="no driver; 4 AMD GPU(s) are here, and this torch is not built for ROCm")
    monkeypatch.setattr(devices, "inventory", lambda: here)
    with pytest.raises(ConfigError) as refused:
        devices.bind("cuda", RankInfo.from_env({}))
    assert "is built without CUDA (no driver; 4 AMD GPU(s) are here" in str(refused.value.cause)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("mps", "xpu, mps and hpu are not supported"),
        ("rocm", "AMD's GPUs are cuda"),
        ("tpu", "use one of auto"),
    ],
)
def test_other_devices_are_refused_with_the_reason(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        devices.bind(name, RankInfo.from_env({}))
    assert hint in str(refused.value.hint)


@pytest.mark.parametrize(("xpu", "mps"), [(True, False), (False, True), (False, False)])
def test_an_accelerator_that_is_not_used_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, xpu: bool, mps: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: xpu)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert devices.bind("auto", RankInfo.from_env({})).type == "cpu"
    assert ("is not supported: this rank computes on the CPU" in caplog.text) == (xpu or mps)
    caplog.clear()
    devices.bind("cpu", RankInfo.from_env({}))
    assert caplog.text == ""


def test_a_change_of_hips_variables_is_warned_about_where_torch_is_built_for_amd(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cuda_visible_devices, "value_at_start", lambda name: "0,1")
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "0,1")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    cuda_visible_devices.warn_if_changed(alone=False)
    assert ("HIP_VISIBLE_DEVICES" in caplog.text) == (torch.version.hip is not None)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    cuda_visible_devices.warn_if_changed(alone=False)
    assert "HIP_VISIBLE_DEVICES is '1', and was '0,1' when this process started" in caplog.text
    assert "ROCR_VISIBLE_DEVICES is" not in caplog.text
