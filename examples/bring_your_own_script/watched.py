"""Five more lines, and it can be monitored and preempted: `status`, metrics.jsonl, save-and-stop.

dist-train launch --gpus-per-node 4 --name spirals watched.py
dist-train status spirals                                   # step, epoch, loss, the age of the checkpoint
dist-train cancel spirals                                   # like Ctrl-C or a time limit: it saves and stops
dist-train resume spirals
"""

import torch
from spirals import spirals
from torch import nn
from torch.nn.functional import cross_entropy

import dist_train as dt

device = dt.init(seed=0).device
model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
model = dt.prepare(model)
data = dt.loader(spirals(), batch_size=64, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
manager = dt.checkpoint.CheckpointManager(dt.init().dir / "checkpoints", every_steps=20)
manager.load_latest(state := {"model": model, "optimizer": optimizer, "data": data})
for epoch in range(data.epoch, 12):
    for x, y in data:
        loss = cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step = data.epoch * len(data) + data.step  # 1
        manager.save_if_due(step, state)
        dt.init().log(step=step, epoch=epoch, loss=loss)  # 2: rank 0 writes metrics.jsonl, the others return
        if dt.init().should_stop():  # 3: True on all ranks at the same step
            manager.save(step, state)  # 4
            raise dt.errors.Preempted(f"saved at step {step}")  # 5: exit code 75: it can be resumed
    print(f"epoch {epoch} is done")
dt.checkpoint.save_model(model, "spirals.safetensors")
