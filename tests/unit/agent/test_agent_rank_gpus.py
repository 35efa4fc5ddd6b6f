"""The GPUs that the agent lets each rank see: a MIG slice each, and HIP's variables. No GPU is here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dist_train.agent.command_line import read_settings
from dist_train.agent.settings import Settings
from dist_train.agent.workers.rank_gpus import choose_slices, gpu_environ
from dist_train.jobs.agent_command import agent_argv, agent_environ
from dist_train.jobs.gpus import Gpu
from dist_train.jobs.spec import JobSpec, Target

CARD = Gpu(0, "GPU-a", "H100", 0, 80)
SLICES = [Gpu(1, f"MIG-b{number}", "H100 MIG 1g", 0, 10, slice=number) for number in range(3)]


def settings_of(ranks: int, device: str = "cuda") -> Settings:
    spec = JobSpec("a", "a-1", Path("/a"), Target("script", "/train.py", (), "/"), 1, ranks)
    environ = agent_environ(spec, "slurm", 0, "tcp://127.0.0.1:1", job="1.0")
    return replace(read_settings(agent_argv(spec, "python")[4:], environ), device=device)


@pytest.mark.parametrize(
    ("gpus", "environ", "chosen"),
    [
        (
            SLICES,
            {},
            ("MIG-b0", "MIG-b1"),
        ),  # Kubernetes: nobody set a variable, CUDA would show all ranks MIG-b0
        ([CARD, *SLICES], {}, ("GPU-a", "MIG-b0")),
        ([CARD, CARD], {}, ()),  # whole GPUs: ranks see all, and take theirs by local rank
        ([], {"CUDA_VISIBLE_DEVICES": "MIG-GPU-x/7/0,MIG-GPU-x/8/0"}, ("MIG-GPU-x/7/0", "MIG-GPU-x/8/0")),
        ([], {"CUDA_VISIBLE_DEVICES": "0,1"}, ()),
        ([], {}, ()),
    ],
)
def test_two_ranks(gpus: list[Gpu], environ: dict[str, str], chosen: tuple[str, ...]) -> None:
    settings = choose_slices(settings_of(2), gpus, environ)
    assert (settings.rank_gpus, settings.cannot_start) == (chosen, "")
    assert choose_slices(settings_of(2, "cpu"), gpus, environ).rank_gpus == ()


def test_more_ranks_than_slices_are_refused_with_both_numbers() -> None:
    settings = choose_slices(settings_of(4), SLICES, {})
    assert settings.rank_gpus == ()
    assert settings.cannot_start.startswith(
        "4 ranks need a GPU or MIG slice each, and 3 may be used here (MIG-b0, MIG-b1, MIG-b2); "
        "--gpus-per-node 3"
    )


def test_each_rank_sees_its_slice_alone() -> None:
    inherited = {"CUDA_VISIBLE_DEVICES": "MIG-b0,MIG-b1"}
    seen = gpu_environ(inherited, "cuda", 1, ("MIG-b0", "MIG-b1"))
    assert seen == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "MIG-b1"}
    assert gpu_environ(inherited, "cpu", 1, ("MIG-b0", "MIG-b1")) == {}


@pytest.mark.parametrize(
    ("environ", "added"),
    [
        ({}, {}),
        ({"ROCR_VISIBLE_DEVICES": "2,3"}, {}),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, {}),
        # Parsl's issue 3858: torch finds no GPU, since HIP looks for the second and third of two.
        ({"ROCR_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "2,3"}, {"HIP_VISIBLE_DEVICES": "0,1"}),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "1"}, {}),  # another list: it is meant
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, {}),
    ],
)
def test_one_list_in_two_variables_is_one_choice_for_hip(
    environ: dict[str, str], added: dict[str, str]
) -> None:
    assert gpu_environ(environ, "cuda", 0, rocm=True) == added
