"""`dist-train checkpoint list|verify|show`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from dist_train.cli.checkpoint_process import ask_checkpoints
from dist_train.cli.json_output import print_json
from dist_train.cli.options import SPELLINGS, json_option, once, run_argument
from dist_train.cli.runs import find_run
from dist_train.cli.sub_verbs import SubVerbs
from dist_train.cli.table import age, number, render_pairs, render_table, size
from dist_train.errors import ExitCode, NotFoundError
from dist_train.rundir import RunDir

_HEADS = ("STEP", "EPOCH", "SIZE", "AGE", "RANKS", "ATTEMPT", "SCORE", "")


@click.group(cls=SubVerbs)
def checkpoint() -> None:
    """List, verify and show checkpoints."""


@checkpoint.command("list", context_settings=SPELLINGS)
@run_argument
@json_option
def list_all(run: str, as_json: bool) -> int:
    """List RUN's checkpoints, oldest first. Their data is not read: `verify` does that."""
    folder, best_of = _folder(run), _best_rule(run)
    found = list(ask_checkpoints("list", folder))
    best = _best(found, best_of)
    if as_json:
        print_json(
            {"directory": folder, "checkpoints": [{**one, "best": one["step"] in best} for one in found]}
        )
        return int(ExitCode.OK)
    click.echo(render_table(_HEADS, [_row(one, one["step"] in best) for one in found]))
    return int(ExitCode.OK)


@checkpoint.command(context_settings=SPELLINGS)
@click.argument("path", default="@last", metavar="[RUN|CHECKPOINT]")
@json_option
def verify(path: str, as_json: bool) -> int:
    """Read every byte of a run's checkpoints, or of one, and compare it with its hash.

    Ends with 0 if all are whole, 78 if one is damaged (its file and block are named), 66 if there is none.
    """
    found = []
    for one in ask_checkpoints("verify", _folder(path)):
        found.append(one)
        if not as_json:
            click.echo(_verdict(one))
    damaged = [one for one in found if one["problems"]]
    if as_json:
        print_json({"ok": not damaged, "checkpoints": found})
    elif damaged:
        click.echo(f"[dist-train] {len(damaged)} of {len(found)} checkpoints are damaged", err=True)
    return int(ExitCode.CONFIG if damaged else ExitCode.OK)


@checkpoint.command(context_settings=SPELLINGS)
@click.argument("path", default="@last", metavar="[RUN|CHECKPOINT]")
@once("--step", type=click.IntRange(min=0), help="Of a run: this step.  [default: the newest]")
@json_option
def show(path: str, step: int | None, as_json: bool) -> int:
    """Print what a checkpoint's manifest says; whole with --json."""
    folder = _folder(path)
    if step is not None:
        folder = _of_step(folder, step)
    (one,) = ask_checkpoints("show", folder)
    if as_json:
        print_json(one)
    else:
        click.echo(render_pairs(_pairs(one)))
    return int(ExitCode.OK)


def _folder(word: str) -> Path:
    """A checkpoint, a folder of checkpoints, or the run of that name's."""
    path = Path(word)
    if path.is_dir() and not RunDir(path).is_run and _holds_checkpoints(path):
        return path.absolute()
    return find_run(word).checkpoints


def _holds_checkpoints(path: Path) -> bool:
    return path.name.startswith("step-") or (path / "manifest.json").exists() or any(path.glob("step-*"))


def _of_step(folder: Path, step: int) -> Path:
    path = folder / f"step-{step:08d}"
    if path.is_dir():
        return path
    there = sorted(int(p.name[5:]) for p in folder.glob("step-*") if p.name[5:].isdigit())
    raise NotFoundError(
        f"there is no checkpoint of step {step} in {folder}",
        cause=f"there are: {', '.join(map(str, there)) or 'none'}",
    )


def _best_rule(run: str) -> tuple[str, int] | None:
    """(mode, how many) of the run's own config; None for a run without one."""
    path = Path(run)
    if path.is_dir() and not RunDir(path).is_run:
        return None
    config = find_run(run).config
    if not config.exists():
        return None
    from dist_train.config import load_config

    best = load_config(config).config.checkpoint.keep_best
    return None if best is None else (best.mode, best.n)


def _best(found: Iterable[dict[str, Any]], rule: tuple[str, int] | None) -> set[int]:
    if rule is None:
        return set()
    mode, count = rule
    sign = 1 if mode == "min" else -1
    scored = [one for one in found if one["score"] is not None and not one["problems"]]
    return {one["step"] for one in sorted(scored, key=lambda one: (sign * one["score"], one["step"]))[:count]}


def _row(one: dict[str, Any], is_best: bool) -> tuple[str, ...]:
    bad = one["problems"]
    mark = f"cannot be used: {bad[0].splitlines()[0]}" if bad else "best" if is_best else ""
    size_now = size(one["bytes"]) if "bytes" in one else "-"
    facts = (number(one.get(name)) for name in ("world_size", "attempt", "score"))
    return (str(one["step"]), number(one.get("epoch")), size_now, age(_age(one)), *facts, mark)


def _age(one: dict[str, Any]) -> float | None:
    try:
        return max(0.0, time.time() - datetime.fromisoformat(one["created_at"]).timestamp())
    except (KeyError, ValueError):
        return None


def _verdict(one: dict[str, Any]) -> str:
    name = Path(one["path"]).name
    if not one["problems"]:
        return f"{name}  whole  {size(one['bytes'])} in {len(one['files'])} file(s)"
    return "\n".join(f"{name}  DAMAGED  {problem}" for problem in one["problems"])


def _pairs(one: dict[str, Any]) -> list[tuple[str, str]]:
    told = one["manifest"]
    tensors = [
        f"{key}  {entry['dtype']}  {'x'.join(map(str, entry['shape'])) or 'scalar'}"
        for key, entry in sorted(told["tensors"].items())
    ]
    samples = f"{told['samples_in_epoch']} samples into it, {told['samples_total']} in all"
    return [
        ("checkpoint", one["path"]),
        ("step", f"{told['step']} (epoch {told['epoch']}, {samples})"),
        ("written", f"{told['created_at']} by attempt {told['attempt']} of {told['run_id']}"),
        ("ranks", f"{told['world_size']}, strategy {told['strategy']}"),
        ("score", number(one["score"])),
        ("data", _inline(told["data"])),
        ("determinism", _inline(told["determinism"])),
        ("weights_hash", told["weights_hash"]),
        ("state_hash", told["state_hash"]),
        ("self_hash", told["self_hash"]),
        ("config_xxh3", told["config_xxh3"]),
        ("files", "\n".join(f"{entry['name']}  {size(entry['bytes'])}" for entry in told["files"])),
        ("aliases", "\n".join(f"{key} = {to}" for key, to in sorted(told["aliases"].items())) or "none"),
        ("tensors", "\n".join(tensors) or "none"),
    ]


def _inline(record: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in record.items()) or "-"


COMMAND = checkpoint
