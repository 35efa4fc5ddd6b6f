"""`launch --profile`, whose value may be left out, and the screen of `dist-train profile`."""

from __future__ import annotations

import gzip
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dist_train.profiling.trace_file import trace_path
from dist_train.rundir import RunDir

DIGITS = Path(__file__).parents[3] / "examples" / "digits.yaml"


def agents_words(said: Any) -> list[str]:
    """The words about profiling in the agent's command line, as the plan has it."""
    assert said.code == 0, said.err
    return sorted({word for word in shlex.split(said.out) if word.strip('",').startswith("--profile")})


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (["--profile", "TRAIN"], "11:15"),
        (["--profile", "4:6", "TRAIN"], "4:6"),
        (["--profile=7", "TRAIN"], "7"),
        (["--profile", "--nodes", "1", "TRAIN"], "11:15"),
        (["--profile", "-m", "json.tool"], "11:15"),
        (["DIGITS", "--profile"], "11:15"),
        (["DIGITS", "seed=2", "--profile", "trainer.epochs=1"], "11:15"),
        (["--profile", "DIGITS", "seed=2"], "11:15"),
        (["DIGITS", 'launch.profile="4:6"'], "4:6"),
        (["DIGITS", 'launch.profile="4:6"', "--profile", "none"], None),
        (["TRAIN", "--profile"], None),  # the script's own
        (["--name", "--profile", "TRAIN"], None),
        (["-m", "json.tool", "--profile"], None),
        (["TRAIN"], None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_the_steps_are_given_or_left_out(
    here: Path, dist_train: Any, words: list[str], steps: str | None
) -> None:
    (here / "train.py").write_text("")
    places = {"TRAIN": "train.py", "DIGITS": str(DIGITS)}
    launch = ("launch", "--dry-run", "--device", "cpu", "--gpus-per-node", 1)
    said = dist_train(*launch, *(places.get(word, word) for word in words))
    if said.code == 78:
        assert words[0] == "--name"  # a name that is none; never taken for the option
        assert "'--profile' cannot be used" in said.err
        return
    ours = [word.strip('",') for word in agents_words(said) if "=" in word]
    assert ours == ([] if steps is None else ["--profile-ranks=0", f"--profile={steps}"])


def test_a_resume_changes_the_steps_and_keeps_the_ranks_that_are_there(
    dist_train: Any, make_run: Callable[..., Any]
) -> None:
    make_run("a-1", nodes=1, procs_per_node=4, profile="4:6", profile_ranks="1,3").began().preempted()
    dry = ("resume", "--dry-run")
    kept = agents_words(dist_train(*dry, "--gpus-per-node", 2))
    assert [word.strip('",') for word in kept] == ["--profile-ranks=1", "--profile=4:6"]
    other = agents_words(dist_train(*dry, "--profile", "9", "--profile-ranks", "all"))
    assert [word.strip('",') for word in other] == ["--profile-ranks=all", "--profile=9"]
    assert agents_words(dist_train(*dry, "--profile", "none", "--profile-ranks", "0")) == []


def write_trace(run: RunDir, attempt: int, rank: int, device: str = "this CPU") -> None:
    def span(cat: str, name: str, begin: int, end: int, **args: Any) -> dict[str, Any]:
        event = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1}
        return {**event, "ts": begin, "dur": end - begin, "args": args}

    shapes = {"Input Dims": [[100, 200], [200, 500]], "Input type": ["float", "float"]}
    events = [
        span("user_annotation", "ProfilerStep#1", 0, 20_000),
        span("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 2_000),
        span("cpu_op", "aten::mm", 4_000, 14_000, **shapes),
        span("user_annotation", "gloo:all_reduce", 12_000, 17_000),
    ]
    facts = {"device": device, "first": 11, "complete": 1}
    path = trace_path(run, attempt, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps({"dist_train": facts, "traceEvents": events}).encode()))


def test_the_screen_says_where_the_time_went(dist_train: Any, make_run: Callable[..., Any]) -> None:
    run = make_run("a-1").began().run
    write_trace(run, 0, 0)
    write_trace(run, 1, 0, "NVIDIA L4")
    write_trace(run, 1, 3)
    said = dist_train("profile")
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert lines[0] == "a-1, attempt 2, steps 11 to 11 since its start, CPU: NVIDIA L4"
    assert lines[1].split("  ")[0] == "RANK"
    row = "20 ms  10 ms  50 %  3 ms  15 %   2 ms  10 %  5 ms  25 %  0.02        "
    assert [" ".join(line.split()) for line in lines[2:4]] == [
        " ".join(f"0 {row} 0.0 %".split()),
        " ".join(f"3 {row} -".split()),
    ]
    assert "MFU: the peak of this CPU is not known" in lines
    assert "aten::mm                 10 ms     50 %  1" in lines
    assert str(run.profile / "attempt-1") in lines[-1]
    one = dist_train("profile", "a-1", "--attempt", 1, "--json")
    record = json.loads(one.out)
    assert (record["attempt"], [rank["rank"] for rank in record["ranks"]]) == (0, [0])
    assert record["ranks"][0]["communication_s"] == pytest.approx(0.003)


def test_what_is_missing_is_said_with_what_is_there(dist_train: Any, make_run: Callable[..., Any]) -> None:
    run = make_run("a-1").began().run
    none = dist_train("profile")
    assert none.code == 66
    assert "a-1 has no trace" in none.err
    assert "--profile 11:15" in none.err
    write_trace(run, 0, 2)
    other = dist_train("profile", "--rank", 5)
    assert (other.code, "attempt 1: rank 2" in other.err) == (66, True)
