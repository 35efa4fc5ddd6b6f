"""The same training on any number of processes and machines: five lines change, the loop does not.

python after.py                                             # still runs alone
dist-train launch --gpus-per-node 4 after.py                # four processes
dist-train launch --nodes 2 --gpus-per-node 4 after.py      # two nodes; --launcher slurm: on a cluster
"""

import torch
from spirals import spirals
from torch import nn
from torch.nn.functional import cross_entropy

import dist_train as dt  # 1

device = dt.init(seed=0).device  # 2: every rank binds its device and seeds its RNGs
model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
model = dt.prepare(model)  # 3: on the device, with rank 0's weights, in DDP; before the optimizer
data = dt.loader(spirals(), batch_size=64, shuffle=True)  # 4: 64 per step of the WHOLE job, each sample once
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(12):
    for x, y in data:
        loss = cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"epoch {epoch} is done")
dt.checkpoint.save_model(model, "spirals.safetensors")  # 5: by rank 0, with the plain model's names
