"""A script of the form of pytorch/examples' `imagenet/main.py`, on torchvision's fake images and on CPU.

Its flags, its order of work, its meters that are reduced over the ranks, its checkpoint.pth.tar and its
`--resume`; smaller images and data, and DDP on CPU too (the original wraps the model only on a GPU).
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import time
import warnings

import operators_of_torchvision  # noqa: F401  # before torchvision
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torchvision.datasets as datasets
import torchvision.models as models
import torchvision.transforms as transforms
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

model_names = sorted(name for name in models.list_models(module=models))

parser = argparse.ArgumentParser(description="PyTorch ImageNet Training")
parser.add_argument("-a", "--arch", default="resnet18", choices=model_names)
parser.add_argument("-j", "--workers", default=4, type=int)
parser.add_argument("--epochs", default=90, type=int)
parser.add_argument("-b", "--batch-size", default=256, type=int)
parser.add_argument("--lr", default=0.1, type=float)
parser.add_argument("--resume", default="", type=str)
parser.add_argument("--world-size", default=-1, type=int, help="number of nodes for distributed training")
parser.add_argument("--rank", default=-1, type=int, help="node rank for distributed training")
parser.add_argument("--dist-url", default="tcp://224.66.41.62:23456", type=str)
parser.add_argument("--dist-backend", default="nccl", type=str)
parser.add_argument("--seed", default=None, type=int)
parser.add_argument("--multiprocessing-distributed", action="store_true")
parser.add_argument("--dummy", action="store_true")
parser.add_argument("--out", required=True)
parser.add_argument("--fault", default="none")


def main() -> None:
    args = parser.parse_args()
    if args.seed is not None:
        random.seed(args.seed)
        torch.manual_seed(args.seed)
        warnings.warn("You have chosen to seed training.", stacklevel=1)
    if args.dist_url == "env://" and args.world_size == -1:
        args.world_size = int(os.environ["WORLD_SIZE"])
    if args.multiprocessing_distributed:
        mp.spawn(main_worker, nprocs=1, args=(1, args))
    else:
        main_worker(None, 1, args)


def main_worker(gpu: int | None, ngpus_per_node: int, args: argparse.Namespace) -> None:
    if args.dist_url == "env://" and args.rank == -1:
        args.rank = int(os.environ["RANK"])
    if args.multiprocessing_distributed:
        args.rank = args.rank * ngpus_per_node + (gpu or 0)
    dist.init_process_group(args.dist_backend, args.dist_url, world_size=args.world_size, rank=args.rank)
    print(f"=> creating model '{args.arch}'")
    model = nn.parallel.DistributedDataParallel(models.__dict__[args.arch](num_classes=10))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = StepLR(optimizer, step_size=30, gamma=0.1)
    start_epoch, best_acc1 = 0, torch.zeros(())
    if args.resume and os.path.isfile(args.resume):
        checkpoint = torch.load(args.resume)
        start_epoch, best_acc1 = checkpoint["epoch"], checkpoint["best_acc1"]
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        print(f"=> loaded checkpoint '{os.path.basename(args.resume)}' (epoch {start_epoch})")
    assert args.dummy, "this copy has no images of its own"
    train_set = datasets.FakeData(32, (3, 32, 32), 10, transforms.ToTensor())
    val_set = datasets.FakeData(16, (3, 32, 32), 10, transforms.ToTensor())
    train_sampler = DistributedSampler(train_set)
    val_sampler = DistributedSampler(val_set, shuffle=False, drop_last=True)
    train_loader = DataLoader(train_set, args.batch_size, num_workers=args.workers, sampler=train_sampler)
    val_loader = DataLoader(val_set, args.batch_size, num_workers=args.workers, sampler=val_sampler)
    for epoch in range(start_epoch, args.epochs):
        train_sampler.set_epoch(epoch)
        train(train_loader, model, criterion, optimizer, epoch, start_epoch, args)
        acc1 = validate(val_loader, model)
        scheduler.step()
        is_best, best_acc1 = bool(acc1 > best_acc1), max(acc1, best_acc1)
        if args.rank == 0:
            state = {"epoch": epoch + 1, "arch": args.arch, "best_acc1": best_acc1}
            state |= {"state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
            state |= {"scheduler": scheduler.state_dict()}
            save_checkpoint(state, is_best, args.out)
    if args.rank == 0:
        torch.save(model.module.state_dict(), os.path.join(args.out, "weights.pt"))


def train(loader, model, criterion, optimizer, epoch, start_epoch, args) -> None:  # type: ignore[no-untyped-def]
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(loader):
        if args.rank == 1 and i == 1:
            if args.fault == "raise":
                raise ValueError("the user's own mistake")
            if args.fault == "exit":
                raise SystemExit(3)
            if args.fault == "kill" and (epoch, start_epoch) == (1, 0):
                os.kill(os.getpid(), signal.SIGKILL)
        loss = criterion(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"Epoch: [{epoch}][{i}/{len(loader)}]\tTime {time.time() - end:6.3f}\tLoss {loss.item():.4e}")
        end = time.time()


def validate(loader, model) -> torch.Tensor:  # type: ignore[no-untyped-def]
    model.eval()
    counts = torch.zeros(2)
    with torch.no_grad():
        for images, target in loader:
            counts += torch.tensor([(model(images).argmax(1) == target).sum(), len(target)])
    dist.all_reduce(counts)
    print(f" *   Acc@1 {100 * counts[0] / counts[1]:.3f}")
    return counts[0] / counts[1]


def save_checkpoint(state: dict[str, object], is_best: bool, folder: str) -> None:
    filename = os.path.join(folder, "checkpoint.pth.tar")
    torch.save(state, filename)
    if is_best:
        shutil.copyfile(filename, os.path.join(folder, "model_best.pth.tar"))


if __name__ == "__main__":
    main()
