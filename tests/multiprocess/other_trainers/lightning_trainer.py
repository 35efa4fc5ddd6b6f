"""Lightning's `Trainer` with DDP on CPU, resumed by `ckpt_path="last"`."""

from __future__ import annotations

import argparse
import os
import signal

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--fault", default="none")
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()


class Classifier(pl.LightningModule):
    """A small network; fails in the second process, as asked."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 2))
        self.was_resumed = False

    def on_load_checkpoint(self, checkpoint) -> None:  # type: ignore[no-untyped-def]
        self.was_resumed = True

    def on_train_epoch_start(self) -> None:
        torch.manual_seed(100 + self.current_epoch)

    def training_step(self, batch, index):  # type: ignore[no-untyped-def]
        if self.global_rank == 1 and index == 1:
            if args.fault == "raise":
                raise ValueError("the user's own mistake")
            if args.fault == "exit":
                raise SystemExit(3)
            if args.fault == "kill" and self.current_epoch == 1 and not self.was_resumed:
                os.kill(os.getpid(), signal.SIGKILL)
        x, y = batch
        loss = nn.functional.cross_entropy(self.layers(x), y)
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):  # type: ignore[no-untyped-def]
        return torch.optim.AdamW(self.parameters(), lr=0.01)


pl.seed_everything(7)
rows = torch.randn(64, 8)
loader = DataLoader(TensorDataset(rows, (rows[:, 0] > 0).long()), batch_size=8, shuffle=True, num_workers=1)
trainer = pl.Trainer(
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    strategy="ddp",
    max_epochs=args.epochs,
    default_root_dir=args.out,
    callbacks=[ModelCheckpoint(dirpath=os.path.join(args.out, "lightning"), save_last=True)],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    log_every_n_steps=1,
)
model = Classifier()
trainer.fit(model, loader, ckpt_path="last")
if trainer.is_global_zero:
    print(f"trained to step {trainer.global_step}, resumed {model.was_resumed}")
    torch.save(model.state_dict(), os.path.join(args.out, "weights.pt"))
