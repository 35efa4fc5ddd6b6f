"""The ImageNet script: the original's flags, its columns, what it keeps, and that nothing counts twice."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from example_runs import EXAMPLES, load_example, on_ranks

from dist_train.errors import UsageError
from dist_train.rundir.metrics import read_metrics
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


def test_of_each_superfluous_flag_it_is_said_what_became_of_it() -> None:
    file = load_example("imagenet_style.py")
    run = SimpleNamespace(num_nodes=2, world_size=8)

    def said(words: str) -> list[str]:
        return file.check(file.parser().parse_args(words.split()), run)

    assert said("") == []
    lines = said("--rank 0 --dist-url tcp://a:1 --dist-backend nccl --multiprocessing-distributed --gpu 3")
    assert [line.split(" is superfluous: ")[0] for line in lines] == [
        "--rank 0",
        "--dist-url tcp://a:1",
        "--dist-backend nccl",
        "--multiprocessing-distributed",
        "--gpu 3",
    ]
    assert said("--world-size 2") == said("--world-size 8") == []
    with pytest.raises(UsageError, match=r"--world-size 4: here run 2 node\(s\), 8 process"):
        said("--world-size 4")
    with pytest.raises(UsageError, match="--pretrained: nothing is downloaded"):
        said("--pretrained")


@pytest.mark.proof
def test_two_ranks_killed_and_resumed_end_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = (*TINY, "--epochs", "3", "-p", "2", "--seed", "0", "--no-accel", "--lr", "0.02")
    on_ranks(2, SCRIPT, words, tmp_path / "base")
    said = capfd.readouterr().out
    columns = r"Time +\d+\.\d{3} \( *\d+\.\d{3}\)\tData .*\tLoss .*\tAcc@1 .*\tAcc@5 .*"
    assert len(re.findall(rf"^Epoch: \[\d\]\[ +[24]/4\]\t{columns}$", said, re.MULTILINE)) == 6, said
    with pytest.raises(RanksFailed, match="SIGKILL"):
        on_ranks(2, SCRIPT, words, tmp_path / "killed", kill=(1, 11))
    assert on_ranks(2, SCRIPT, words, tmp_path / "killed", attempt=1) == [4, 4]
    again = capfd.readouterr().out
    assert "=> loaded" in again
    assert scores_of(again)[-1] == scores_of(said)[-1]
    newest = tmp_path / "base" / "checkpoints" / "step-00000012"
    assert weights(newest) == weights(tmp_path / "killed" / "checkpoints" / newest.name)
    assert (newest.parent / "step-00000008").is_dir()
    for name in ("base", "killed"):
        records = read_metrics(tmp_path / name / "metrics.jsonl")
        assert [record["step"] for record in records] == [2, 4, 6, 8, 10, 12]
        assert {"loss", "acc1", "acc5", "epoch", "time", "data"} <= set(records[-1])
    for n in (1, 2, 3):  # the last step of three images has one: two of three processes have none
        words = (*words, "-b", "3", "-e", "--resume", str(newest))
        assert on_ranks(n, SCRIPT, words, tmp_path / f"evaluated-{n}") == [0] * n
    evaluated = scores_of(capfd.readouterr().out)
    assert evaluated == [scores_of(said)[-1]] * 3, "each image once, at any number of processes"
    assert evaluated[0].endswith("over 10 images")


def weights(checkpoint: Path) -> str:
    return json.loads((checkpoint / "manifest.json").read_text())["weights_hash"]


def scores_of(said: str) -> list[str]:
    """The ` * Acc@1 …` lines."""
    return re.findall(r"^ \* .*$", said, re.MULTILINE)
