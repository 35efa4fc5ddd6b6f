"""A training loop that records the samples of each step; slow in the first attempt."""

import json
import os
import time

import torch

import dist_train as dt


class Numbers(torch.utils.data.Dataset):
    """Item i is i."""

    dataset_id = "numbers-200"

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(index)]), index


run = dt.init(seed=0)
model = dt.prepare(torch.nn.Linear(1, 1))
data = dt.loader(Numbers(), batch_size=4, workers=1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
manager = dt.checkpoint.CheckpointManager(run.dir / "checkpoints", every_steps=5)
state = {"model": model, "optimizer": optimizer, "data": data}
restored = manager.load_latest(state)
step = restored.step if restored else 0
ledger = (run.dir / f"ledger-rank-{run.rank}.jsonl").open("a", buffering=1)
for _epoch in range(data.epoch, 2):
    for x, ids in data:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        ledger.write(json.dumps({"attempt": run.attempt, "step": step, "ids": ids.tolist()}) + "\n")
        manager.save_if_due(step, state)
        if run.attempt == 0:
            time.sleep(float(os.environ.get("SLOW_S", "0")))
if run.is_main:
    print("done at step", step)
