"""Four more lines, and the training survives the loss of a rank, a node or the whole cluster.

dist-train launch --gpus-per-node 4 --name spirals resumable.py
dist-train resume spirals                                   # after all processes were killed

Killed with `kill -9` at any step, it resumes from the newest checkpoint and ends with the same bits.
A second `dt.init()` returns the same run; `launch` makes its directory (`python resumable.py` has none).
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
manager = dt.checkpoint.CheckpointManager(dt.init().dir / "checkpoints", every_steps=20)  # 1
manager.load_latest(state := {"model": model, "optimizer": optimizer, "data": data})  # 2
for epoch in range(data.epoch, 12):  # 3: the loader resumes at the exact sample
    for x, y in data:
        loss = cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        manager.save_if_due(data.epoch * len(data) + data.step, state)  # 4
    print(f"epoch {epoch} is done")
dt.checkpoint.save_model(model, "spirals.safetensors")
