"""Which GPU each rank has: recorded by rank 0, unlike ones refused. The GPUs are made up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import dist_train as dt
from dist_train.distributed import device_map, devices, visible
from dist_train.distributed.control import Control
from dist_train.distributed.roll_call import Hello, unlike_devices
from dist_train.distributed.visible import changed_words, value_at_start
from dist_train.env import RankInfo
from dist_train.jobs.gpus import Gpu
from dist_train.rundir.devices import RankDevice, read_devices
from dist_train.rundir.directory import RunDir

UUID = "5e1f0000-0000-0000-0000-000000000003"


def test_rank_to_visible_to_physical_to_uuid(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    facts = SimpleNamespace(uuid=UUID, name="H100")  # torch tells the UUID without its `GPU-`
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
    # Without the driver's library the number on the machine is not known, and that is said.
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
def test_rank_0_writes_what_every_rank_tells(
    ranks: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.create()
    (run_dir.attempts / "4").mkdir()
    for name, value in {"RUN_ID": "r", "ATTEMPT": 4, "NODE_RANK": 0, "NNODES": 1}.items():
        monkeypatch.setenv(f"DIST_TRAIN_{name}", str(value))
    monkeypatch.setenv("DIST_TRAIN_RUN_DIR", str(run_dir.path))

    def begin(meeting: str) -> int:
        def pretend(info: RankInfo, device: torch.device) -> dict[str, Any]:
            return vars(
                RankDevice(info.rank, 0, "here", info.local_rank, str(7 - info.rank), "GPU-x", "H100")
            )

        device_map._mine = pretend
        with dt.init(device="cpu", init_method=meeting, timeout_s=20) as run:
            return run.rank

    assert ranks(2, begin) == [0, 1]
    told = [(d.rank, d.visible_index, d.physical_index) for d in read_devices(run_dir, 4)]
    assert told == [(0, 0, "7"), (1, 1, "6")]


def hello(gpu: str | None) -> Hello:
    return Hello("node-a", "1", 2, gpu)


def test_ranks_whose_devices_do_not_fit_together() -> None:
    assert unlike_devices([hello("a"), hello("b")]) == ("", "")
    assert unlike_devices([hello(None), hello(None)]) == ("", "")
    what, mend = unlike_devices([hello("a"), hello(None), hello("b")])
    assert what == "rank 1 would compute on the CPU, the others on GPUs (node-a shows none)"
    assert "--device cpu" in mend
    assert "use the same GPU a of node-a" in unlike_devices([hello("a"), hello("a")])[0]


@pytest.mark.parametrize(
    ("before", "now", "started", "words"),
    [
        ("0,1", "0,1", True, None),
        (None, None, False, None),
        ("GPU-a", "3", True, "is '3', and was 'GPU-a' when this process started; CUDA has started already"),
        ("GPU-a", "3", False, "are not those that the launcher gave this rank"),
        (None, "0", True, "was not set when"),
        ("0", None, True, "is not set, and was '0'"),
    ],
)
def test_a_script_that_chooses_gpus_itself_is_warned(
    before: str | None, now: str | None, started: bool, words: str | None
) -> None:
    told = changed_words(before, now, started)
    if words is None:
        assert told is None
    else:
        assert told is not None
        assert words in told
        assert "--gpus" in told


def test_the_value_at_the_start_is_the_kernels(tmp_path: Path) -> None:
    block = tmp_path / "environ"
    block.write_bytes(b"A=1\0CUDA_VISIBLE_DEVICES=GPU-a,GPU-b\0B=\0")
    assert value_at_start(block) == "GPU-a,GPU-b"
    block.write_bytes(b"A=1\0")
    assert value_at_start(block) is None


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


def test_a_script_alone_may_choose_its_gpu_before_cuda_starts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The tutorials' `os.environ["CUDA_VISIBLE_DEVICES"] = "5"` on the first line is right there."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    visible.warn_if_changed(alone=True)
    assert not caplog.text
    visible.warn_if_changed(alone=False)
    assert "all ranks may share one" in caplog.text


def test_a_slice_is_known_by_the_name_that_cuda_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks on two slices of a card are not two ranks on one GPU."""
    card = SimpleNamespace(uuid=UUID, name="H100 MIG 1g.10gb")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    slices = [Gpu(0, f"MIG-{name}", "H100 MIG", 0, 10, slice=i) for i, name in enumerate("ab")]
    monkeypatch.setattr(device_map, "physical_gpus", lambda: slices)
    hellos = []
    for name in "ab":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"MIG-{name}")
        hellos.append(hello(devices.unique_id(torch.device("cuda", 0))))
    assert unlike_devices(hellos) == ("", "")
    mine = device_map._mine(RankInfo.from_env({}), torch.device("cuda", 0))
    assert mine is not None
    assert (mine["physical_index"], mine["uuid"]) == ("0:1", "MIG-b")
