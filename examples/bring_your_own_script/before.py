"""An everyday training loop: one process, one device.

python before.py
"""

import torch
from spirals import spirals
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
model = model.to(device)
data = DataLoader(spirals(), batch_size=64, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(12):
    for x, y in data:
        loss = cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"epoch {epoch} is done")
torch.save(model.state_dict(), "spirals.pt")
