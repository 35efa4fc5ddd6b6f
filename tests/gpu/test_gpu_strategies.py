"""The strategies on one GPU, in a group of one rank on NCCL; the contract suite on as many as there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist
from one_gpu import DEVICE, Blocks, clip_by_hand, group_of_one, model, train, wrapped
from torch import Tensor

import dist_train as dt
from dist_train import registry
from dist_train.checkpoint.manager import CheckpointManager
from dist_train.distributed.control_group import Control
from dist_train.distributed.run import Run
from dist_train.env import RankInfo
from dist_train.strategies.prepare import load_strategy
from dist_train.testing import RanksFailed, check_strategy, run_ranks

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

SHARDED = [
    ("fsdp", {}),
    ("fsdp", {"reshard_after_forward": False}),
    ("fsdp", {"units": ["Linear"]}),
    ("fsdp", {"cpu_offload": True}),
    ("hsdp", {"replicate": 1}),
]


@pytest.fixture(scope="module")
def by_hand() -> list[tuple[float, float]]:
    return train(model().to(DEVICE), DEVICE, clip_by_hand)


@pytest.mark.parametrize(("strategy", "options"), [("ddp", {}), *SHARDED])
def test_a_group_of_one_trains_as_a_loop_by_hand(
    strategy: str, options: dict[str, Any], by_hand: list[tuple[float, float]]
) -> None:
    with group_of_one() as run:
        net = wrapped(model(), run, strategy, **options)
        found = train(net, DEVICE, lambda net: load_strategy(strategy).clip_norm(net, 0.5))
    assert [loss for loss, _ in found] == pytest.approx([loss for loss, _ in by_hand], rel=1e-9)
    assert [norm for _, norm in found] == pytest.approx([norm for _, norm in by_hand], rel=1e-9)


@pytest.mark.parametrize("options", [{"reduce_dtype": "fp32"}, {}])
def test_sharded_weights_stay_fp32_where_bf16_computes(options: dict[str, Any]) -> None:
    with group_of_one() as run:
        net = wrapped(model(torch.float32), run, "fsdp", param_dtype="bf16", **options)
        found = train(net, DEVICE, lambda net: load_strategy("fsdp").clip_norm(net, 0.5))
        assert {parameter.dtype for parameter in net.parameters()} == {torch.float32}
    plain = train(model(torch.float32).to(DEVICE), DEVICE, clip_by_hand)
    assert [loss for loss, _ in found] == pytest.approx([loss for loss, _ in plain], rel=0.05)


@pytest.mark.parametrize(("strategy", "options"), [("ddp", {"communication_hook": "bf16"}), *SHARDED])
def test_a_checkpoint_of_a_gpu_opens_on_the_cpu_and_on_the_gpu_again(
    tmp_path: Path, strategy: str, options: dict[str, Any]
) -> None:
    with group_of_one() as run:
        net = wrapped(model(), run, strategy, **options)
        train(net, DEVICE, lambda net: load_strategy(strategy).clip_norm(net, 0.5), steps=2)
        saved = CheckpointManager(tmp_path, control=run.control).save(1, {"model": net})
        again = wrapped(model(), run, strategy, **options)
        assert CheckpointManager(tmp_path, control=run.control).load_latest({"model": again}) is not None
        copied = CheckpointManager(tmp_path / "gpu", control=run.control).save(1, {"model": again})
    plain = model()
    assert CheckpointManager(tmp_path).load_latest({"model": plain}) is not None
    on_cpu = CheckpointManager(tmp_path / "cpu").save(1, {"model": plain})
    assert saved.weights_hash == copied.weights_hash == on_cpu.weights_hash


def same_gpu(strategy: str) -> list[tuple[float, float]]:
    """One of two ranks on cuda:0 with gloo, which takes tensors of a GPU for some collectives."""
    torch.cuda.set_device(0)
    torch_dist.init_process_group("gloo")
    rank, size = torch_dist.get_rank(), torch_dist.get_world_size()
    control = Control(torch_dist.new_group(backend="gloo"), rank, size)
    run = Run(RankInfo.from_env(), DEVICE, control=control)
    net = wrapped(model(), run, strategy)
    return train(net, DEVICE, lambda net: load_strategy(strategy).clip_norm(net, 0.5))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_on_one_gpu_by_gloo(strategy: str, by_hand: list[tuple[float, float]]) -> None:
    try:
        found = run_ranks(same_gpu, 2, 300, args=(strategy,), start="spawn")
    except RanksFailed as error:
        said = [text.strip().splitlines()[-1] for text in error.tracebacks.values()]
        if not any("gloo" in line.lower() or "not implemented" in line.lower() for line in said):
            raise
        pytest.skip(f"gloo has no such collective for tensors of a GPU: {said[0]}")
    for ours in found:
        assert [loss for loss, _ in ours] == pytest.approx([loss for loss, _ in by_hand], rel=1e-9)


def init_on_a_gpu() -> None:
    with dt.init(device="cuda", timeout_s=60):
        pass


def test_dt_init_refuses_two_ranks_on_one_gpu() -> None:
    if torch.cuda.device_count() > 1:
        pytest.skip("there are several GPUs: each rank has its own")
    with pytest.raises(RanksFailed, match="the same GPU"):
        run_ranks(init_on_a_gpu, 2, 300, start="spawn")


@pytest.mark.parametrize("name", sorted(set(registry.names("strategies")) - {"split"}))
def test_the_contract(name: str) -> None:
    """On one GPU with one rank: every strategy but those for one process is then `single`."""
    count = torch.cuda.device_count()
    worlds = tuple(world for world in (2, 3, 4) if world <= count)
    check_strategy(load_strategy(name), 300, worlds=worlds, device="cuda")
    if not worlds and not getattr(load_strategy(name), "one_process", False):
        pytest.skip("passed with one rank; several need several GPUs, since NCCL takes a GPU for one rank")


class Chain(Blocks):
    """What it adds up lies within its layers: `split` may put each on another GPU."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.last(x)
        return out


def test_split_lays_layers_over_two_gpus_and_trains_as_one() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("split lays a model over several GPUs, and there is one")
    losses = []
    for strategy, options in (("single", {}), ("split", {"devices": 2})):
        torch.manual_seed(0)
        net = Chain().double()
        with group_of_one() as run:
            net = wrapped(net, run, strategy, **options)
            losses.append([loss for loss, _ in train(net, DEVICE, clip_by_hand)])
            places = {parameter.device.index for parameter in net.parameters()}
        assert places == ({0} if strategy == "single" else {0, 1})
    assert losses[1] == pytest.approx(losses[0], rel=1e-9)


def saved_by_ranks(folder: str, strategy: str) -> str:
    """Train on several GPUs, save, and open it again: the hash of the weights."""
    with dt.init(device="cuda", seed=0, timeout_s=120) as run:
        net = dt.prepare(model(), strategy)
        train(net, run.device, lambda net: dt.clip_grad_norm_(net, 0.5), steps=2)
        first = CheckpointManager(Path(folder)).save(1, {"model": net})
        CheckpointManager(Path(folder)).load_latest({"model": net})
        return f"{first.weights_hash} {CheckpointManager(Path(folder)).save(2, {'model': net}).weights_hash}"


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_checkpoints_of_several_gpus_open_on_one(tmp_path: Path, strategy: str) -> None:
    ranks = min(4, torch.cuda.device_count())
    if ranks < 2:
        pytest.skip("several ranks need several GPUs")
    found = set(run_ranks(saved_by_ranks, ranks, 300, args=(str(tmp_path), strategy), start="spawn"))
    (hashes,) = found
    net = model()
    CheckpointManager(tmp_path).load_latest({"model": net})
    alone = CheckpointManager(tmp_path / "alone").save(1, {"model": net}).weights_hash
    assert hashes.split() == [alone, alone]
