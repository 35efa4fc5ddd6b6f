"""The well-known ImageNet script (pytorch/examples, imagenet/main.py) on dist-train: its flags, its columns.

python imagenet_style.py --dummy -a resnet10 --epochs 1
dist-train launch --gpus-per-node 4 imagenet_style.py -a resnet18 -b 256 --epochs 30      # Fashion-MNIST
dist-train launch --nodes 2 --gpus-per-node 4 imagenet_style.py DIR -b 1024 --lr 0.4
dist-train status; dist-train resume                         # after a kill, a preemption, a cancel

What differs from the original:
- Time and Data as there; Loss, Acc@1 and Acc@5 are those of the whole job, not of one process.
- -b is the batch of the whole job (there: of one node), -j the loader processes of each rank.
- The evaluation counts every image once, over all processes, at any number of them.
- The newest two checkpoints and the best by Acc@1 are kept; a restart resumes by itself.
- --resume takes a checkpoint directory; with -e also a file such as model_best.pth.tar.
- --world-size --rank --dist-url --dist-backend --multiprocessing-distributed --gpu are accepted, but
  `dist-train launch` decides these: a line says why each has no effect.
Data: DIR has IDX files (with MNIST's names); without DIR, Debian's Fashion-MNIST. For folders of images,
return torchvision's ImageFolder from `data_sets`.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

import dist_train as dt
from dist_train.datasets.idx import IdxImages
from dist_train.models.resnet import ARCHITECTURES, ResNet

SUPERFLUOUS = {
    "world_size": "`launch --nodes` sets it",
    "rank": "every process gets its own",
    "dist_url": "the processes find each other; `launch --init-method` insists on an address",
    "dist_backend": "gloo on the CPU, nccl on GPUs",
    "multiprocessing_distributed": "`launch` starts one process per GPU",
    "gpu": "each process has its own; `launch --gpus 3` chooses",
}


class DummyImages(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Random images with stripes, generated from the index; the class is the width of the stripes."""

    deterministic_items = True

    def __init__(self, count: int, size: int, classes: int) -> None:
        self.count, self.size, self.classes = count, size, classes
        self.dataset_id = f"dummy/{count}/{size}/{classes}"

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        label = index % self.classes
        generator = torch.Generator().manual_seed(index)
        stripes = torch.sin(torch.arange(self.size) * (label + 1) * 3.0 / self.classes)
        return stripes + 0.3 * torch.rand(3, self.size, self.size, generator=generator), torch.tensor(label)


class Meter:
    """The last value and the mean over the epoch, as in the original."""

    def __init__(self, name: str, form: str) -> None:
        self.name, self.form = name, form
        self.value = self.total = self.count = 0.0

    def update(self, total: float, count: float) -> None:
        """Add a sum over `count` things."""
        self.value = total / max(count, 1)
        self.total += total
        self.count += count

    @property
    def mean(self) -> float:
        """The mean over everything added."""
        return self.total / max(self.count, 1)

    def __str__(self) -> str:
        return f"{self.name} {self.value:{self.form}} ({self.mean:{self.form}})"


class Scores:
    """Loss and accuracies of the whole job: kept on the device, summed over the ranks when shown."""

    def __init__(self, run: dt.Run) -> None:
        self.run = run
        self.loss, self.top1, self.top5 = Meter("Loss", ".4e"), Meter("Acc@1", "6.2f"), Meter("Acc@5", "6.2f")
        self._sums = torch.zeros(4, dtype=torch.float64, device=run.device)

    def add(self, outputs: torch.Tensor, target: torch.Tensor) -> None:
        """Add one batch of this rank, without waiting for the device."""
        with torch.no_grad():
            loss = cross_entropy(outputs, target, reduction="sum")
            ranked = outputs.topk(min(5, outputs.shape[1]), dim=1).indices == target[:, None]
            row = torch.stack([loss, ranked[:, 0].sum(), ranked.sum(), loss.new_tensor(len(target))])
            self._sums += row.double()

    def gather(self) -> None:
        """Collective: sum over all ranks what was added since the last call."""
        loss, right1, right5, count = self.run.control.sum(self._sums.tolist())
        self._sums.zero_()
        for meter, total in ((self.loss, loss), (self.top1, 100 * right1), (self.top5, 100 * right5)):
            meter.update(total, count)


def parser() -> argparse.ArgumentParser:
    """The original's options, and four of ours at the end."""
    words = argparse.ArgumentParser(description="ImageNet-style training", allow_abbrev=False)
    add = words.add_argument
    add("data", metavar="DIR", nargs="?", help="folder of IDX files (default: Debian's Fashion-MNIST)")
    add("-a", "--arch", metavar="ARCH", default="resnet18", choices=sorted(ARCHITECTURES))
    add("-j", "--workers", default=0, type=int, metavar="N", help="loader processes per rank")
    add("--epochs", default=90, type=int, metavar="N")
    add("--start-epoch", default=0, type=int, metavar="N", help="if there is no checkpoint")
    add("-b", "--batch-size", default=256, type=int, metavar="N", help="of the whole job")
    add("--lr", "--learning-rate", default=0.1, type=float, metavar="LR")
    add("--momentum", default=0.9, type=float, metavar="M")
    add("--wd", "--weight-decay", default=1e-4, type=float, metavar="W", dest="weight_decay")
    add("-p", "--print-freq", default=10, type=int, metavar="N")
    add(
        "--resume",
        default="",
        metavar="PATH",
        help="a checkpoint of another run: …/checkpoints/step-00000100; a run's own newest one comes first",
    )
    add("-e", "--evaluate", action="store_true", help="evaluate on the held-out images and exit")
    add("--pretrained", action="store_true", help="begin with the weights of --weights")
    add("--world-size", default=None, type=int, help="superfluous: `dist-train launch --nodes N`")
    add("--rank", default=None, type=int, help="superfluous")
    add("--dist-url", default=None, help="superfluous")
    add("--dist-backend", default=None, help="superfluous")
    add("--seed", default=None, type=int)
    add("--gpu", default=None, type=int, help="superfluous: `dist-train launch --gpus N`")
    add("--no-accel", action="store_true", help="use the CPU")
    add("--multiprocessing-distributed", action="store_true", default=None, help="superfluous")
    add("--dummy", action="store_true", help="generated images")
    add("--weights", metavar="FILE", help="weights to begin with: safetensors or torch.save's")
    add("--width", default=64, type=int, metavar="N", help="channels of the first group")
    add("--limit", default=None, type=int, metavar="N", help="only the first N images")
    add("--image-size", default=32, type=int, metavar="N", help="pixels of a dummy image's side")
    return words


def check(args: argparse.Namespace, run: dt.Run) -> list[str]:
    """Lines about superfluous flags; an error if one contradicts the running job."""
    if args.world_size not in (None, run.num_nodes, run.world_size):
        raise dt.errors.UsageError(
            f"--world-size {args.world_size}: here run {run.num_nodes} node(s), {run.world_size} process(es)",
            hint=f"dist-train launch --nodes {args.world_size} … imagenet_style.py …",
        )
    if args.pretrained and not args.weights:
        raise dt.errors.UsageError("--pretrained: nothing is downloaded here", hint="add --weights FILE")
    if args.print_freq < 1:
        raise dt.errors.UsageError(f"--print-freq {args.print_freq}", hint="give 1 or more")
    notes = []
    if run.num_nodes > 1:
        notes.append(f"-b {args.batch_size} is the batch of all {run.num_nodes} nodes together")
    for name, why in SUPERFLUOUS.items():
        if (value := getattr(args, name)) is not None:
            flag = "--" + name.replace("_", "-")
            notes.append(f"{flag if value is True else f'{flag} {value}'} is superfluous: {why}")
    return notes


def data_sets(args: argparse.Namespace) -> tuple[Dataset, Dataset]:
    """(training, held out)."""
    if args.dummy:
        count = args.limit or 1280
        return DummyImages(count, args.image_size, 10), DummyImages(max(1, count // 5), args.image_size, 10)
    if args.data and Path(args.data, "train").is_dir():
        raise dt.errors.UsageError(
            f"{args.data} has folders of images, and this script reads IDX files",
            hint="return torchvision's ImageFolder from `data_sets` in it",
        )
    folder = args.data or None
    return IdxImages("train", folder, args.limit), IdxImages("evaluation", folder, args.limit)


def build_model(args: argparse.Namespace, sample: torch.Tensor, classes: int) -> nn.Module:
    """The network for images such as `sample` [channels, height, width]."""
    small = sample.shape[-1] < 64
    model = ResNet(args.arch, classes, sample.shape[0], args.width, small_images=small)
    if args.weights:
        dt.checkpoint.load_model(args.weights, model)
    return model


def restore(args: argparse.Namespace, manager: dt.checkpoint.CheckpointManager, state: dict) -> str:
    """Restore this run's newest checkpoint, else --resume, else begin at --start-epoch; returns a note."""
    if args.evaluate and args.resume:
        dt.checkpoint.load_model(args.resume, state["model"])
        return f"=> loaded the weights of {args.resume}"
    restored = manager.load_latest(state)
    ignored = f"; --resume {args.resume} is not read" if restored and args.resume else ""
    if restored is None and args.resume:
        path = Path(args.resume)
        restored = dt.checkpoint.CheckpointManager(path.parent).load(_step_of(path), state)
    if restored is not None:
        at = f"epoch {state['data'].epoch}, step {restored.step}"
        return f"=> loaded {restored.path} ({at}){ignored}"
    state["data"].seek(args.start_epoch, 0)
    return f"=> beginning at epoch {args.start_epoch}"


def _step_of(path: Path) -> int:
    number = path.name.removeprefix("step-")
    if not number.isdigit():
        raise dt.errors.UsageError(
            f"--resume {path} names no checkpoint",
            hint="give …/checkpoints/step-00000100; weights alone: --weights FILE",
        )
    return int(number)


def validate(model: nn.Module, loader: dt.data.EvaluationLoader, run: dt.Run) -> Scores:
    """Collective: every held-out image once, whatever the number of processes."""
    scores = Scores(run)
    model.eval()
    with torch.no_grad():
        for batch in loader:
            images, target = dt.to_device(batch, run.device)
            scores.add(model(images), target)
    scores.gather()
    return scores


def timed(batches: Iterator, spent: Meter) -> Iterator:
    """Iterate over batches; the meter gets the seconds waited for each."""
    while True:
        began = time.perf_counter()
        try:
            batch = next(batches)
        except StopIteration:
            return
        spent.update(time.perf_counter() - began, 1)
        yield batch


def train_epoch(
    run: dt.Run,
    args: argparse.Namespace,
    model: nn.Module,
    state: dict,
    say: Callable[[str], None],
    stop: Callable[[int], None],
) -> None:
    """Train the rest of the loader's epoch."""
    loader, optimizer = state["data"], state["optimizer"]
    epoch, scores = loader.epoch, Scores(run)
    took, waited = Meter("Time", "6.3f"), Meter("Data", "6.3f")
    for group in optimizer.param_groups:
        group["lr"] = args.lr * 0.1 ** (epoch // 30)
    model.train()
    began = time.perf_counter()
    for batch in timed(iter(loader), waited):
        images, target = dt.to_device(batch, run.device)
        outputs = model(images)
        optimizer.zero_grad()
        cross_entropy(outputs, target).backward()
        optimizer.step()
        counted = run.batch_weight.local
        scores.add(outputs[:counted], target[:counted])
        took.update(time.perf_counter() - began, 1)
        began = time.perf_counter()
        step = epoch * len(loader) + loader.step
        if loader.step % args.print_freq == 0 or loader.step == len(loader):
            scores.gather()
            columns = "\t".join(map(str, (took, waited, scores.loss, scores.top1, scores.top5)))
            say(f"Epoch: [{epoch}][{loader.step:5}/{len(loader)}]\t{columns}")
            facts = {"acc1": scores.top1.mean, "acc5": scores.top5.mean, "lr": group["lr"]}
            run.log(
                step=step, epoch=epoch, loss=scores.loss.mean, time=took.value, data=waited.value, **facts
            )
        stop(step)


def train(run: dt.Run, args: argparse.Namespace, say: Callable[[str], None]) -> None:
    """Train, evaluate and save."""
    train_set, val_set = data_sets(args)
    classes = 10 if args.dummy else 1 + max(int(each.labels.max()) for each in (train_set, val_set))  # type: ignore[attr-defined]
    say(f"=> creating model '{args.arch}' for {classes} classes, {len(train_set)} images")  # type: ignore[arg-type]
    model = dt.prepare(build_model(args, train_set[0][0], classes))
    optimizer = torch.optim.SGD(
        model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay
    )
    # The order of the images depends on --seed only (default 0), so that --resume finds it again.
    loader = dt.loader(train_set, args.batch_size, seed=args.seed or 0, workers=args.workers)
    val_loader = dt.loader(val_set, args.batch_size, evaluation=True, workers=args.workers)
    state = {"model": model, "optimizer": optimizer, "data": loader}
    folder = run.dir / "checkpoints" if run.run_id else Path("checkpoints")
    manager = dt.checkpoint.CheckpointManager(folder, keep_last=2, keep_best=1, best_mode="max")
    say(restore(args, manager, state))

    def stop(step: int) -> None:
        if run.should_stop():
            manager.save(step, state)
            raise dt.errors.Preempted(f"saved at step {step}")

    def measure() -> float:
        scores = validate(model, val_loader, run)
        count = f"{scores.top1.count:.0f} images"
        say(f" * Acc@1 {scores.top1.mean:.3f} Acc@5 {scores.top5.mean:.3f} over {count}")
        return scores.top1.mean

    if args.evaluate:
        measure()
        return
    if loader.epoch >= args.epochs:
        say(f"=> nothing to train: {args.epochs} epochs are done (--epochs N: more)")
    while (epoch := loader.epoch) < args.epochs:
        train_epoch(run, args, model, state, say, stop)
        manager.save((epoch + 1) * len(loader), state, score=measure())


def main(words: Sequence[str] | None = None) -> None:
    """Run one rank."""
    args = parser().parse_args(words)
    torch.backends.cudnn.deterministic = args.seed is not None
    with dt.init(seed=args.seed, device="cpu" if args.no_accel else None) as run:

        def say(text: str) -> None:
            if run.is_main:
                print(text, flush=True)

        for line in check(args, run):
            say(line)
        if not run.run_id:
            say(f"=> not by `dist-train launch`: {run.world_size} process(es), checkpoints in ./checkpoints")
        train(run, args, say)


if __name__ == "__main__":
    main()
