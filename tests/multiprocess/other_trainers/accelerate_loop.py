"""accelerate's own loop: `Accelerator`, `prepare`, `backward`, `save_state`, `load_state`."""

from __future__ import annotations

import argparse
import os
import signal

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--fault", default="none")
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()

accelerator = Accelerator(
    cpu=True,
    gradient_accumulation_steps=2,
    dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
)
set_seed(7)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 2))
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

first_epoch = 0
saved = os.path.join(args.out, "state")
if os.path.isdir(saved):
    accelerator.load_state(saved)
    first_epoch = 1
    accelerator.print("resumed at epoch 1")

for epoch in range(first_epoch, args.epochs):
    loader.set_epoch(epoch)
    set_seed(100 + epoch)
    for step, (x, y) in enumerate(loader):
        if args.fault == "raise" and accelerator.process_index == 1 and step == 1:
            raise ValueError("the user's own mistake")
        if args.fault == "exit" and accelerator.process_index == 1 and step == 1:
            raise SystemExit(3)
        if (
            args.fault == "kill"
            and (epoch, step, first_epoch) == (1, 1, 0)
            and accelerator.process_index == 1
        ):
            os.kill(os.getpid(), signal.SIGKILL)
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    losses = accelerator.gather_for_metrics(loss.detach().reshape(1))
    accelerator.print(f"epoch {epoch}: mean loss {losses.mean():.4f} of {len(losses)} processes")
    if epoch == 0:
        accelerator.wait_for_everyone()
        accelerator.save_state(saved)

accelerator.wait_for_everyone()
weights = accelerator.unwrap_model(model).state_dict()
accelerator.save(weights, os.path.join(args.out, "weights.pt"))
accelerator.end_training()
