"""The ImageNet script: the original's flags and columns, its checkpoints, and exact evaluation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from example_runs import EXAMPLES, load_example, on_ranks

from dist_train.checkpoint.weights.model_io import load_model
from dist_train.errors import UsageError
from dist_train.models.resnet import ResNet
from dist_train.rundir.metrics_file import read_metrics
from dist_train.testing.ranks import RanksFailed

SCRIPT = EXAMPLES / "imagenet_style.py"
TINY = ("--dummy", "-a", "resnet10", "--width", "4", "--image-size", "16", "--limit", "50", "-b", "16")
# Every option of pytorch/examples imagenet/main.py, as its users type it.
ORIGINAL = """
    DIR -a resnet18 --arch resnet18 -j 4 --workers 4 --epochs 90 --start-epoch 0 -b 256 --batch-size 256
    --lr 0.1 --learning-rate 0.1 --momentum 0.9 --wd 1e-4 --weight-decay 1e-4 -p 10 --print-freq 10
    --resume x -e --evaluate --pretrained --world-size 1 --rank 0 --dist-url tcp://127.0.0.1:1
    --dist-backend nccl --seed 0 --gpu 0 --no-accel --multiprocessing-distributed --dummy
"""


def test_it_takes_every_flag_of_the_original() -> None:
    args = load_example("imagenet_style.py").parser().parse_args(ORIGINAL.split())
    assert (args.data, args.weight_decay, args.lr, args.print_freq) == ("DIR", 1e-4, 0.1, 10)


def test_each_superfluous_flag_is_explained() -> None:
    file = load_example("imagenet_style.py")

    def notes(words: str, num_nodes: int = 1, world_size: int = 8) -> list[str]:
        run = SimpleNamespace(num_nodes=num_nodes, world_size=world_size)
        return file.check(file.parser().parse_args(words.split()), run)

    assert notes("") == []
    assert notes("", num_nodes=2) == ["-b 256 is the batch of all 2 nodes together"]  # there: of each
    lines = notes("--rank 0 --dist-url tcp://a:1 --dist-backend nccl --multiprocessing-distributed --gpu 3")
    assert [line.split(" is superfluous: ")[0] for line in lines] == [
        "--rank 0",
        "--dist-url tcp://a:1",
        "--dist-backend nccl",
        "--multiprocessing-distributed",
        "--gpu 3",
    ]
    for right in ("--world-size 1", "--world-size 8"):
        assert notes(right) == [f"{right} is superfluous: `launch --nodes` sets it"]
    for wrong in (2, 4):
        with pytest.raises(UsageError, match=rf"--world-size {wrong}: here run 1 node\(s\), 8 process"):
            notes(f"--world-size {wrong}")
    with pytest.raises(UsageError, match=r"--world-size 1: here run 2 node\(s\)"):
        notes("--world-size 1", num_nodes=2)
    with pytest.raises(UsageError, match="--print-freq 0"):
        notes("-p 0")
    with pytest.raises(UsageError, match="--pretrained: nothing is downloaded"):
        notes("--pretrained")


def test_the_checkpoint_that_is_read_is_logged(tmp_path: Path) -> None:
    file = load_example("imagenet_style.py")
    newest = SimpleNamespace(path="checkpoints/step-00000008", step=8)
    manager = SimpleNamespace(load_latest=lambda state: newest)
    state = {"data": SimpleNamespace(epoch=2)}

    def restored(words: str) -> str:
        return file.restore(file.parser().parse_args(words.split()), manager, state)

    assert restored("") == f"=> loaded {newest.path} (epoch 2, step 8)"
    assert (
        restored("--resume a/step-4")
        == f"=> loaded {newest.path} (epoch 2, step 8); --resume a/step-4 is not read"
    )
    manager.load_latest = lambda state: None
    with pytest.raises(UsageError, match=r"best\.pth\.tar names no checkpoint") as caught:
        restored("--resume best.pth.tar")
    assert "weights alone: --weights FILE" in str(caught.value)


def test_folders_of_images_are_refused_with_a_hint(tmp_path: Path) -> None:
    file = load_example("imagenet_style.py")
    (tmp_path / "train" / "n01440764").mkdir(parents=True)
    with pytest.raises(UsageError, match="folders of images") as caught:
        file.data_sets(file.parser().parse_args([str(tmp_path)]))
    assert "ImageFolder from `data_sets`" in str(caught.value)


def test_files_of_the_original_are_evaluated(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """model_best.pth.tar, as its save_checkpoint writes it, of a DistributedDataParallel."""
    file = load_example("imagenet_style.py")
    args = file.parser().parse_args(TINY)
    train_set, val_set = file.data_sets(args)
    model = file.build_model(args, train_set[0][0], 10)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    record = {
        "epoch": 3,
        "arch": "resnet10",
        "state_dict": torch.nn.DataParallel(model).state_dict(),
        "best_acc1": torch.tensor(12.5),
        "optimizer": optimizer.state_dict(),
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 30).state_dict(),
    }
    torch.save(record, tmp_path / "model_best.pth.tar")
    words = (*TINY, "--no-accel", "-e", "--resume", str(tmp_path / "model_best.pth.tar"))
    assert on_ranks(1, SCRIPT, words, tmp_path) == [0]
    assert scores_of(capfd.readouterr().out) == [plain_score(model, val_set)]


@pytest.mark.proof
def test_another_run_resumes_a_checkpoint_without_a_seed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = (*TINY, "--no-accel", "--epochs")
    assert on_ranks(1, SCRIPT, (*words, "1"), tmp_path / "first") == [4]
    checkpoint = tmp_path / "first" / "checkpoints" / "step-00000004"
    assert on_ranks(1, SCRIPT, (*words, "2", "--resume", str(checkpoint)), tmp_path / "second") == [4]
    assert f"=> loaded {checkpoint} (epoch 1, step 4)" in capfd.readouterr().out
    assert on_ranks(1, SCRIPT, (*words, "1"), tmp_path / "first", attempt=1) == [0]
    assert "=> nothing to train: 1 epochs are done" in capfd.readouterr().out


@pytest.mark.proof
def test_two_ranks_killed_and_resumed_end_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = (*TINY, "--epochs", "3", "-p", "2", "--seed", "0", "--no-accel", "--lr", "0.02")
    on_ranks(2, SCRIPT, words, tmp_path / "base")
    output = capfd.readouterr().out
    columns = r"Time +\d+\.\d{3} \( *\d+\.\d{3}\)\tData .*\tLoss .*\tAcc@1 .*\tAcc@5 .*"
    assert len(re.findall(rf"^Epoch: \[\d\]\[ +[24]/4\]\t{columns}$", output, re.MULTILINE)) == 6, output
    with pytest.raises(RanksFailed, match="SIGKILL"):
        on_ranks(2, SCRIPT, words, tmp_path / "killed", kill=(1, 11))
    assert on_ranks(2, SCRIPT, words, tmp_path / "killed", attempt=1) == [4, 4]
    again = capfd.readouterr().out
    assert "=> loaded" in again
    assert scores_of(again)[-1] == scores_of(output)[-1]
    newest = tmp_path / "base" / "checkpoints" / "step-00000012"
    assert weights(newest) == weights(tmp_path / "killed" / "checkpoints" / newest.name)
    assert (newest.parent / "step-00000008").is_dir()
    for name in ("base", "killed"):
        records = read_metrics(tmp_path / name / "metrics.jsonl")
        assert [record["step"] for record in records] == [2, 4, 6, 8, 10, 12]
        assert {"loss", "acc1", "acc5", "epoch", "time", "data"} <= set(records[-1])
    evaluate = (*TINY, "--no-accel", "-b", "3", "-e", "--resume", str(newest))  # --seed is not needed
    for n in (1, 2, 3):  # the last step of three images has one: two of three processes have none
        assert on_ranks(n, SCRIPT, evaluate, tmp_path / f"evaluated-{n}") == [0] * n
    evaluated = scores_of(capfd.readouterr().out)
    file = load_example("imagenet_style.py")
    model = ResNet("resnet10", 10, width=4, small_images=True)
    load_model(newest, model)
    truth = plain_score(model, file.data_sets(file.parser().parse_args(TINY))[1])
    assert truth.endswith("over 10 images")
    assert evaluated == [truth] * 3, "each image once, at any number of processes"
    assert scores_of(output)[-1] == truth


def plain_score(model: torch.nn.Module, images: Any) -> str:
    """The line that the script must print, from one loop over all images."""
    with torch.no_grad():
        model.eval()
        ranks = [
            int((model(x[None])[0] > model(x[None])[0, y]).sum())
            for x, y in map(images.__getitem__, range(len(images)))
        ]
    top1, top5 = (100 * sum(rank < k for rank in ranks) / len(ranks) for k in (1, 5))
    return f" * Acc@1 {top1:.3f} Acc@5 {top5:.3f} over {len(ranks)} images"


def weights(checkpoint: Path) -> str:
    return json.loads((checkpoint / "manifest.json").read_text())["weights_hash"]


def scores_of(output: str) -> list[str]:
    """The ` * Acc@1 …` lines."""
    return re.findall(r"^ \* .*$", output, re.MULTILINE)
