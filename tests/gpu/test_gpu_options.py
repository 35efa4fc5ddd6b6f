"""Training options on a GPU: fp16, recomputed activations, compiled blocks, and what a step waits for."""

from __future__ import annotations

import copy

import pytest
import torch
from one_gpu import DEVICE, clip_by_hand, group_of_one, model, train, wrapped

import dist_train as dt
from dist_train.config.schema import CompileConfig
from dist_train.strategies.prepare import load_strategy
from dist_train.trainer.compiled_model import compiled

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp"])
def test_recomputed_activations_give_the_same_bits_with_dropout(strategy: str) -> None:
    found = []
    for recomputed in (False, True):
        with group_of_one() as run:
            net = model(dropout=0.3)
            if recomputed:
                dt.checkpoint_activations(net)
            net = wrapped(net, run, strategy)
            torch.manual_seed(1)
            found.append(train(net, DEVICE, lambda net: load_strategy(strategy).clip_norm(net, 0.5)))
    assert found[0] == found[1]


def test_recomputed_activations_take_less_memory() -> None:
    def peak(recomputed: bool) -> int:
        net = model(torch.float32, width=512)
        if recomputed:
            dt.checkpoint_activations(net)
        net.to(DEVICE)
        torch.cuda.reset_peak_memory_stats(DEVICE)
        before = torch.cuda.memory_allocated(DEVICE)
        loss = net(torch.ones(20_000, 8, device=DEVICE)).square().mean()
        used = torch.cuda.memory_allocated(DEVICE) - before
        loss.backward()
        return used

    assert peak(True) < peak(False)


def test_fp16_learns_and_its_scaler_counts_as_torchs() -> None:
    def run(scaler: torch.amp.GradScaler | dt.LossScaler) -> tuple[list[float], float]:
        net = model(torch.float32).to(DEVICE)
        optimizer = torch.optim.AdamW(net.parameters(), 0.01)
        losses = []
        for step in range(12):
            inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(step)).to(DEVICE)
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = (net(inputs) - inputs).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip_by_hand(net)
            scaler.step(optimizer)
            scaler.update()
            losses.append(float(loss.detach()))
        return losses, scaler.factor if isinstance(scaler, dt.LossScaler) else scaler.get_scale()

    ours = run(dt.LossScaler(initial=2.0**30, growth_interval=4))
    theirs = run(torch.amp.GradScaler("cuda", init_scale=2.0**30, growth_interval=4))
    assert ours[1] == theirs[1]
    assert ours[0] == pytest.approx(theirs[0], rel=1e-3)


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp"])
def test_compiled_blocks_train_as_plain_ones(strategy: str) -> None:
    plain = train(model(torch.float32).to(DEVICE), DEVICE, clip_by_hand)
    with group_of_one() as run:
        net = model(torch.float32)
        names = list(net.state_dict())
        compiled(net, CompileConfig(modules="auto"), DEVICE)
        assert list(net.state_dict()) == names
        found = train(
            wrapped(net, run, strategy), DEVICE, lambda net: load_strategy(strategy).clip_norm(net, 0.5)
        )
    assert [loss for loss, _ in found] == pytest.approx([loss for loss, _ in plain], rel=1e-3)


def test_a_copy_of_a_model_with_compiled_blocks_has_its_own_weights() -> None:
    net = model(torch.float32).to(DEVICE)
    compiled(net, CompileConfig(backend="aot_eager", modules="auto"), DEVICE)
    other = copy.deepcopy(net)
    with torch.no_grad():
        other.layers[0][0].weight.zero_()
    inputs = torch.ones(2, 8, device=DEVICE)
    assert not torch.equal(net(inputs), other(inputs))
