"""`dist-train devices` and `--gpus` of launch. The GPUs are made up: this machine may have none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import DIGITS, Command

from dist_train.cli.launch import device_choice
from dist_train.cli.run.find_run import open_run
from dist_train.cli.verbs import devices, resume
from dist_train.jobs.gpus import Gpu, GpuProcess, Inventory
from dist_train.rundir.device_record import RankDevice, write_devices

GIB = 1 << 30
MACHINE = [
    Gpu(0, "GPU-aa", "H100", 40 * GIB, 80 * GIB, "3B", 97, (GpuProcess(17, "ann", 39 * GIB),)),
    Gpu(1, "GPU-bb", "H100", 0, 80 * GIB, "86", 0),
    Gpu(2, "GPU-cc", "H100", 8 * GIB, 80 * GIB, "AF", 0),
    Gpu(3, "GPU-dd", "H100", 0, 80 * GIB, "D8", 0),
]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[Gpu]:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "inventory", lambda: Inventory(tuple(MACHINE)))
    monkeypatch.setattr(device_choice, "visible_gpus", lambda: list(MACHINE))
    return MACHINE


def test_a_machine_without_a_gpu_has_a_reason_and_its_cores(
    dist_train: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "inventory", lambda: Inventory(reason="no driver"))
    said = dist_train("gpus")
    assert said.code == 0
    assert said.out.startswith("no GPU: no driver\n")
    assert {line.split()[0] for line in said.out.splitlines()[2:]} == {"cores", "memory", "/dev/shm"}


@pytest.mark.usefixtures("machine")
def test_the_table_has_a_line_for_each_gpu(dist_train: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    lines = dist_train("devices").out.splitlines()
    assert lines[0].split() == ["#", "GPU", "name", "memory", "load", "processes", "UUID", "PCI", "bus"]
    first = "1  0    H100  40.0 GiB of 80.0 GiB  97 %  17 ann 39.0 GiB  GPU-aa  3B"
    assert lines[1] == first  # GPU 0 is number 1 to this process
    assert [line.split()[0] for line in lines[1:5]] == ["1", "-", "0", "-"]
    assert lines[5] == "2 of 4 hidden by CUDA_VISIBLE_DEVICES"


def test_cards_that_cannot_be_used_are_named(dist_train: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = Inventory((Gpu(1, "GPU-bb", "GB10", 0, 0),), None, ("GPU 0: GPU is lost",))
    monkeypatch.setattr(devices, "inventory", lambda: found)
    lines = dist_train("devices").out.splitlines()
    assert lines[1].split() == ["0", "1", "GB10", "-", "-", "-", "GPU-bb", "-"]
    assert lines[2] == "not usable: GPU 0: GPU is lost"
    assert json.loads(dist_train("devices", "--json").out)["left_out"] == ["GPU 0: GPU is lost"]


@pytest.mark.usefixtures("machine")
def test_json(dist_train: Command) -> None:
    record = json.loads(dist_train("devices", "--json").out)
    assert record["schema_version"] == 1
    assert record["gpus"][0] == {
        "index": 0,
        "slice": None,
        "uuid": "GPU-aa",
        "name": "H100",
        "bus_id": "3B",
        "memory_used": 40 * GIB,
        "memory_total": 80 * GIB,
        "utilisation": 97,
        "processes": [{"pid": 17, "owner": "ann", "memory_used": 39 * GIB}],
        "vendor": "nvidia",
        "visible_index": 0,
    }
    assert record["cores"]["amount"] >= 1


def plan(dist_train: Command, *words: object) -> tuple[list[dict[str, str]], str]:
    """Each node's environment in the plan of a launch, and stderr."""
    said = dist_train("launch", "--dry-run", *words, DIGITS)
    assert said.code == 0, said
    nodes: list[dict[str, Any]] = json.loads(said.out)["nodes"]
    return [node["env"] for node in nodes], said.err


@pytest.mark.usefixtures("machine")
def test_gpus_are_given_by_uuid_in_the_order_named(dist_train: Command) -> None:
    (environ,), said = plan(dist_train, "--gpus", "3,0")
    assert environ["CUDA_VISIBLE_DEVICES"] == "GPU-dd,GPU-aa"
    assert environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert environ["DIST_TRAIN_NPROC_PER_NODE"] == "2"
    assert "--gpus 3,0: GPU 3 (GPU-dd), GPU 0 (GPU-aa)" in said


@pytest.mark.usefixtures("machine")
def test_auto_takes_idle_gpus_and_prints_why(dist_train: Command) -> None:
    (environ,), said = plan(dist_train, "--gpus", "auto", "--gpus-per-node", 2)
    assert environ["CUDA_VISIBLE_DEVICES"] == "GPU-bb,GPU-dd"
    assert "GPU 1 (0 processes, 0 % of memory, 0 % busy)" in said
    assert "left alone: GPU 0 (1 process, 50 % of memory, 97 % busy)" in said


@pytest.mark.usefixtures("machine")
def test_simulated_nodes_divide_the_gpus(dist_train: Command) -> None:
    nodes, _ = plan(dist_train, "--nodes", 2, "--gpus", "0,1,2,3")
    assert [node["CUDA_VISIBLE_DEVICES"] for node in nodes] == ["GPU-aa,GPU-bb", "GPU-cc,GPU-dd"]
    nodes, _ = plan(dist_train, "--nodes", 2, "--gpus", "auto")
    assert [node["CUDA_VISIBLE_DEVICES"] for node in nodes] == ["GPU-bb,GPU-dd", "GPU-cc,GPU-aa"]


@pytest.mark.usefixtures("machine")
def test_one_process_may_see_several_with_a_notice(dist_train: Command) -> None:
    (environ,), said = plan(dist_train, "--gpus", "0,1,2", "--gpus-per-node", 1)
    assert environ["CUDA_VISIBLE_DEVICES"] == "GPU-aa,GPU-bb,GPU-cc"
    assert environ["DIST_TRAIN_NPROC_PER_NODE"] == "1"
    assert "3 GPUs for 1 process(es) of a node" in said


@pytest.mark.usefixtures("machine")
def test_without_gpus_the_first_are_taken_with_a_notice(dist_train: Command) -> None:
    (environ,), said = plan(dist_train, "--gpus-per-node", 3)
    assert environ["CUDA_VISIBLE_DEVICES"] == "GPU-aa,GPU-bb,GPU-cc"
    assert "GPUs: the first 3 of 4 visible" in said
    _, said = plan(dist_train)
    assert "visible" not in said


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--gpus", "0,3", "--gpus-per-node", 4], 78, "4 GPUs are needed, it names 2"),
        (["--gpus", "auto", "--nodes", 3, "--gpus-per-node", 2], 78, "6 GPUs are needed, 4 are visible here"),
        (["--gpus", "0,1,2", "--nodes", 2], 78, "3 GPUs cannot be shared out evenly to 2 nodes"),
        (["--gpus", "auto", "--nodes", 5], 78, "5 GPUs are needed, one for each node, and it gives 4"),
        (
            ["--nodes", 2, "--gpus-per-node", 4],
            78,
            "8 GPUs were asked for (2 node(s) x 4), 4 are visible here",
        ),
        (["--gpus", "0,9"], 78, "there is no GPU 9"),
        (["--gpus", "0", "--device", "cpu"], 2, "--gpus 0 contradicts --device cpu"),
        (["--gpus", "0", "--launcher", "slurm"], 2, "which gives each node its GPUs"),
    ],
)
def test_impossible_requests_are_refused(
    dist_train: Command, here: Path, words: list[object], code: int, message: str
) -> None:
    said = dist_train("launch", "--dry-run", *words, DIGITS)
    assert (said.code, message in said.err) == (code, True), said
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus", "auto"], "--gpus auto: 1 GPU was asked for, 0 are visible here"),
        (["--gpus", "0", "--nodes", 2], "--gpus 0: 2 GPUs were asked for, 0 are visible here"),
        (["--device", "cuda"], "--device cuda: 1 GPU was asked for, 0 are visible here"),
    ],
)
def test_without_any_gpu_the_reason_is_printed(
    dist_train: Command, monkeypatch: pytest.MonkeyPatch, words: list[object], message: str
) -> None:
    monkeypatch.setattr(device_choice, "visible_gpus", list)
    monkeypatch.setattr(device_choice, "inventory", lambda: Inventory(reason="the driver does not answer"))
    said = dist_train("launch", "--dry-run", *words, DIGITS)
    assert (said.code, message in said.err) == (78, True), said
    assert "cause: the driver does not answer\n" in said.err
    monkeypatch.setattr(device_choice, "inventory", lambda: Inventory(tuple(MACHINE)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    said = dist_train("launch", "--dry-run", *words, DIGITS)
    assert "cause: CUDA_VISIBLE_DEVICES='' means none of them\n" in said.err


def test_slices_of_a_card_go_to_a_process_each(dist_train: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    slices = [Gpu(0, f"MIG-{name}", "H100 MIG 1g", 0, 10 * GIB, slice=i) for i, name in enumerate("ab")]
    monkeypatch.setattr(device_choice, "visible_gpus", lambda: slices)
    (environ,), _ = plan(dist_train, "--gpus", "auto")
    assert (environ["CUDA_VISIBLE_DEVICES"], environ["DIST_TRAIN_NPROC_PER_NODE"]) == ("MIG-a,MIG-b", "2")
    (environ,), said = plan(dist_train, "--gpus", "0:1")
    assert (environ["CUDA_VISIBLE_DEVICES"], "GPU 0:1 (MIG-b)" in said) == ("MIG-b", True)
    refused = dist_train("launch", "--dry-run", "--gpus", "0,1", "--gpus-per-node", 1, DIGITS)
    assert (refused.code, "CUDA shows a process one slice at most" in refused.err) == (78, True), refused


def test_resume_gives_a_process_as_many_gpus_as_before(
    make_run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run("a-1", procs_per_node=1, device="cuda", gpus=("GPU-cc", "GPU-aa")).began().finished(3)
    monkeypatch.setattr(resume, "visible_gpus", lambda: list(MACHINE))
    opened = open_run("a-1")
    assert resume.changed_spec(opened, resume.Changes())[0].gpus == ("GPU-cc", "GPU-aa")
    wider = resume.changed_spec(opened, resume.Changes(gpus_per_node=2))[0]
    assert wider.gpus == ("GPU-cc", "GPU-aa", "GPU-bb", "GPU-dd")
    monkeypatch.setattr(resume, "visible_gpus", lambda: MACHINE[:2])  # one that was given is gone
    spec, notices = resume.changed_spec(opened, resume.Changes())
    assert spec.gpus == ("GPU-aa", "GPU-bb")
    assert notices == ["not visible any more: GPU-cc; taking GPU-bb"]


def test_status_shows_which_rank_has_which_gpu(dist_train: Command, make_run: Callable[..., Any]) -> None:
    made = make_run("a-1", nodes=2, device="cuda", gpus=("GPU-cc", "GPU-aa")).began()
    given = dist_train("status", "a-1").out
    assert "devices     node 0 was given GPU-cc\n            node 1 was given GPU-aa\n" in given
    devices = [
        RankDevice(0, 0, "n0", 0, "2", "GPU-cc", "H100"),
        RankDevice(1, 1, "n1", 0, None, "GPU-aa", "H100"),
    ]
    write_devices(made.run, 0, devices)
    lines = dist_train("status", "a-1").out.splitlines()
    assert "devices     rank 0 on n0: cuda:0 = GPU 2, GPU-cc, H100" in lines
    assert "            rank 1 on n1: cuda:0 = GPU ?, GPU-aa, H100" in lines
    record = json.loads(dist_train("status", "a-1", "--json").out)["devices"]
    assert [(d["rank"], d["visible_index"], d["physical_index"]) for d in record] == [
        (0, 0, "2"),
        (1, 0, None),
    ]


def test_status_of_a_run_on_cpu_has_no_gpus(dist_train: Command, make_run: Callable[..., Any]) -> None:
    make_run("a-1").began()
    assert "devices" not in dist_train("status", "a-1").out


def test_amds_gpus_go_by_amds_variables(dist_train: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU is here."""
    cards = [Gpu(i, f"GPU-{i}b", "MI250X", 0, 64 * GIB, vendor="amd") for i in range(4)]
    monkeypatch.setattr(device_choice, "visible_gpus", lambda: cards)
    (environ,), _ = plan(dist_train, "--gpus", "3,1")
    assert (environ["ROCR_VISIBLE_DEVICES"], environ["HIP_VISIBLE_DEVICES"]) == ("GPU-3b,GPU-1b", "0,1")
    assert "CUDA_VISIBLE_DEVICES" not in environ
    for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "2")
    monkeypatch.setattr(devices, "inventory", lambda: Inventory(tuple(cards)))
    assert dist_train("devices").out.splitlines()[5] == "3 of 4 hidden by ROCR_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("word", "message"), [("xpu", "xpu, mps and hpu are not supported"), ("rocm", "AMD's GPUs are cuda")]
)
def test_other_devices_are_refused_with_the_reason(dist_train: Command, word: str, message: str) -> None:
    said = dist_train("launch", "--dry-run", "--device", word, DIGITS)
    assert (said.code, message in said.err) == (2, True), said
