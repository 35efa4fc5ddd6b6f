"""Lightning's `Trainer` with DDP on CPU, resumed by `ckpt_path="last"`.

In a resumed process Lightning 2.6.6 takes the first epoch's order before it sets the epoch in its sampler,
and keeps no state of random numbers: the sampler is made here, its epoch set, and each step is seeded.
Its handler of SIGTERM takes part in a collective, for which ranks may wait for ever that the signal found in
another one: the script puts back Python's own, which interrupts.
"""

from __future__ import annotations

import argparse
import os
import signal

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

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

    def on_train_start(self) -> None:
        signal.signal(signal.SIGTERM, signal.default_int_handler)

    def train_dataloader(self) -> DataLoader[tuple[torch.Tensor, ...]]:
        sampler = DistributedSampler(data, self.trainer.world_size, self.global_rank)
        sampler.set_epoch(self.trainer.fit_loop.epoch_progress.current.processed)
        return DataLoader(data, batch_size=8, sampler=sampler, num_workers=1)

    def on_train_batch_start(self, batch, index) -> None:  # type: ignore[no-untyped-def]
        torch.manual_seed(1000 * self.current_epoch + index)

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
data = TensorDataset(rows, (rows[:, 0] > 0).long())
trainer = pl.Trainer(
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    strategy="ddp",
    use_distributed_sampler=False,
    max_epochs=args.epochs,
    default_root_dir=args.out,
    callbacks=[ModelCheckpoint(dirpath=os.path.join(args.out, "lightning"), save_last=True)],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    log_every_n_steps=1,
)
model = Classifier()
trainer.fit(model, ckpt_path="last")
if trainer.is_global_zero:
    print(f"trained to step {trainer.global_step}, resumed {model.was_resumed}")
    torch.save(model.state_dict(), os.path.join(args.out, "weights.pt"))
