"""transformers' `Trainer` on a model and a data set of its user, resumed by `resume_from_checkpoint`."""

from __future__ import annotations

import argparse
import os
import signal

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--fault", default="none")
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()


class Pairs(Dataset):
    """64 rows of 8 numbers, each with the class of its first."""

    def __init__(self) -> None:
        self.rows = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.rows[index], "labels": (self.rows[index, 0] > 0).long()}


class Classifier(nn.Module):
    """Return the loss with the logits, as the models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Fault(TrainerCallback):
    """Fail in the second process, as asked."""

    def on_step_begin(self, arguments, state, control, **kwargs):  # type: ignore[no-untyped-def]
        if arguments.process_index != 1:
            return
        if args.fault == "raise" and state.global_step == 2:
            raise ValueError("the user's own mistake")
        if args.fault == "exit" and state.global_step == 2:
            raise SystemExit(3)
        if args.fault == "kill" and state.global_step == 6 and last is None:
            os.kill(os.getpid(), signal.SIGKILL)


set_seed(7)
arguments = TrainingArguments(
    output_dir=os.path.join(args.out, "trainer"),
    num_train_epochs=args.epochs,
    per_device_train_batch_size=8,
    learning_rate=0.01,
    save_strategy="epoch",
    logging_steps=2,
    report_to="none",
    use_cpu=True,
    dataloader_num_workers=1,
    disable_tqdm=True,
)
last = get_last_checkpoint(arguments.output_dir) if os.path.isdir(arguments.output_dir) else None
trainer = Trainer(model=Classifier(), args=arguments, train_dataset=Pairs(), callbacks=[Fault()])
trainer.train(resume_from_checkpoint=last)
if trainer.is_world_process_zero():
    print(f"trained to step {trainer.state.global_step}, resumed from {last and os.path.basename(last)}")
    torch.save(
        trainer.accelerator.unwrap_model(trainer.model).state_dict(), os.path.join(args.out, "weights.pt")
    )
