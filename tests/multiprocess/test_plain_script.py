"""A user's own loop: five changed lines make it multi-node, four more make it resumable after a kill."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from conftest import Finished, start

from dist_train.checkpoint.format.hashing import weights_hash

pytestmark = pytest.mark.multiprocess

SCRIPT = """
    import os, sys
    import torch
    import torch.nn.functional as F
    import dist_train as dt
    from dist_train.datasets.digits import Digits
    from dist_train.models.convnet import ConvNet

    run = dt.init(seed=0)
    model = dt.prepare(ConvNet(dropout=0.2))
    data = dt.loader(Digits("train", augment=True), batch_size=100, workers=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    manager = dt.checkpoint.CheckpointManager(run.dir / "checkpoints", every_steps=7)
    state = {"model": model, "optimizer": optimizer, "data": data}
    restored = manager.load_latest(state)
    step = restored.step if restored else 0
    for epoch in range(data.epoch, 3):
        for x, y in data:
            loss = F.cross_entropy(model(x.to(run.device)), y.to(run.device))
            loss.backward(); optimizer.step(); optimizer.zero_grad()
            step += 1
            if sys.argv[1] == "kill" and run.attempt == 0 and (run.rank, step) == (1, 25):
                os.kill(os.getpid(), 9)
            manager.save_if_due(step, state)
            run.log(step=step, loss=loss)
    dt.checkpoint.save_model(model, run.dir / "model.safetensors")
    if run.is_main:
        print("done at step", step, "resumed from", restored.step if restored else None)
"""


def weights(finished: Finished) -> str:
    from safetensors.torch import load_file

    return weights_hash(load_file(finished.run.path / "model.safetensors"))


@pytest.mark.proves(
    "Your own loop with a `CheckpointManager`, killed and resumed, ends with the same weights, uneven last "
    "steps included",
    limits="W = 3",
)
@pytest.mark.proof
def test_killed_and_resumed_it_ends_with_the_same_weights(tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    script.write_text(textwrap.dedent(SCRIPT))
    # 1438 samples / 100: the last step of an epoch has 38 samples on 3 ranks, uneven.
    base = start(tmp_path, "base", "--gpus-per-node", 3, script, "run")
    assert base.cli.code == 0, base.cli
    assert base.cli.stdout.strip() == "done at step 45 resumed from None"
    killed = start(tmp_path, "killed", "--gpus-per-node", 3, script, "kill")
    assert killed.cli.code == 0, killed.cli
    assert killed.cli.stdout.strip() == "done at step 45 resumed from 21"
    assert weights(killed) == weights(base)
