"""Ranks of every strategy end as a script does: with 0, by themselves, and with nothing left behind."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest
from conftest import nothing_left, start

from dist_train import env

pytestmark = [pytest.mark.multiprocess, pytest.mark.proof, pytest.mark.timeout(900)]
ROUNDS = 20

# Everything is local to a function, and every second run is left open: the interpreter's end must close it.
SCRIPT = """
    import json, os, sys
    import torch
    from torch import nn
    import dist_train as dt

    strategy, options, end = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
    rows = open(f"rows-{os.environ['RANK']}.txt", "a")


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 8), nn.Linear(8, 4)])

        def forward(self, x):
            return self.layers[1](self.layers[0](x))

        def tensor_parallel_plan(self):
            return {"layers.0": "colwise", "layers.1": "rowwise"}

        def pipeline_layers(self):
            return list(self.layers)


    def main():
        run = dt.init(device="cpu", seed=0)
        model = dt.prepare(Net(), strategy, **options)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        batches = [torch.ones(2, 4)] * 4
        dt.forward_backward(model, batches, lambda m, x: m(x).square().sum(), [2] * 4)
        dt.clip_grad_norm_(model, 1.0)
        optimizer.step()
        with torch.no_grad():
            model(batches[0])
        manager = dt.checkpoint.CheckpointManager(run.dir / "checkpoints")
        manager.save(1, {"model": model, "optimizer": optimizer})
        rows.write("1 row ")  # flushed by the end of the interpreter
        if end == "closed":
            run.close()


    main()
"""


@pytest.mark.proves(
    "Ranks of each strategy end cleanly, 20 times of 20: with 0, by themselves, and with no process left",
    limits="a step, an evaluation and a save; gloo, on one machine",
)
@pytest.mark.parametrize(
    ("strategy", "ranks", "options"),
    [
        ("ddp", 2, {}),
        ("fsdp", 2, {}),
        ("hsdp", 4, {"replicate": 2}),
        ("tensor_parallel", 2, {}),
        ("fsdp_tensor_parallel", 4, {}),
        ("pipeline", 2, {}),
        ("pipeline", 4, {"stage": 2, "shard": 2}),
        ("split", 2, {"devices": 2}),
    ],
)
def test_twenty_launches_end_cleanly(
    tmp_path: Path, strategy: str, ranks: int, options: Mapping[str, int]
) -> None:
    script = tmp_path / "one_step.py"
    script.write_text(textwrap.dedent(SCRIPT))
    for number in range(ROUNDS):
        end = "closed" if number % 2 else "open"
        words = ("--gpus-per-node", ranks, "--max-restarts", 0, script, strategy, json.dumps(options), end)
        finished = start(tmp_path, f"r{number}", *words, timeout_s=120, env={env.START_METHOD: "auto"})
        assert finished.cli.code == 0, f"launch {number}: {finished.cli}"
        # The agent ends a rank that hangs after its script, and says so.
        assert "cut off" not in finished.cli.stderr, f"launch {number}: {finished.cli}"
        assert nothing_left(finished.run_id)
    written = [path.read_text() for path in sorted(tmp_path.glob("rows-*.txt"))]
    assert written == ["1 row " * ROUNDS] * ranks
