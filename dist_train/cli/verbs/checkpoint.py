"""`dist-train checkpoint list|verify|show|import|export|copy`."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from dist_train.cli.options.param_types import Count
from dist_train.cli.options.shell_complete import runs
from dist_train.cli.options.verb import examples
from dist_train.cli.options.verb_group import SubVerbs
from dist_train.cli.options.verb_options import SPELLINGS, json_option, once, run_argument
from dist_train.cli.output.json_output import print_json
from dist_train.cli.output.table import age, number, render_pairs, render_table, size
from dist_train.cli.run.checkpoint_place import Place
from dist_train.cli.run.checkpoint_process import ask_checkpoints
from dist_train.cli.run.choose_checkpoint import best_rule, best_steps, checkpoint_of_step, checkpoints_of
from dist_train.cli.verbs.checkpoint_convert import copy, export, import_
from dist_train.errors import ExitCode
from dist_train.rundir.display_number import display_number

_HEADS = ("STEP", "EPOCH", "SIZE", "AGE", "RANKS", "ATTEMPT", "SCORE", "")
_KEYS_SHOWN = 2


@click.group(
    cls=SubVerbs,
    epilog=examples(
        "dist-train checkpoint list  # of the newest run",
        "dist-train checkpoint verify digits-1  # every block against its hash",
        "dist-train checkpoint show digits-1 --json",
    ),
)
def checkpoint() -> None:
    """List, verify and show checkpoints; take weights in from other tools, and out to them."""


@checkpoint.command("list", context_settings=SPELLINGS)
@run_argument
@json_option
def list_all(run: str, as_json: bool) -> int:
    """List RUN's checkpoints, oldest first. Their data is not read: `verify` does that."""
    folder, best_of = checkpoints_of(run), best_rule(run)
    found = list(ask_checkpoints("list", folder))
    best = best_steps(found, best_of)
    if as_json:
        checkpoints = [{**one, "best": one["step"] in best} for one in found]
        print_json({"directory": folder, "checkpoints": checkpoints, "quarantine": _quarantined(folder)})
        return int(ExitCode.OK)
    click.echo(render_table(_HEADS, [_row(one, one["step"] in best) for one in found]))
    if aside := _quarantined(folder):
        click.echo(
            f"quarantine/ holds {len(aside)} more that nothing resumes from (damaged, or superseded after a "
            f"rollback): {', '.join(aside)}"
        )
    return int(ExitCode.OK)


@checkpoint.command(context_settings=SPELLINGS)
@click.argument("path", default="@last", metavar="[RUN|CHECKPOINT]", shell_complete=runs)
@json_option
def verify(path: str, as_json: bool) -> int:
    """Read every byte of a run's checkpoints, or of one, and compare it with its hash.

    Ends with 0 if all are whole, 78 if one is damaged (its file and block are named), 66 if there is none.
    One that was saved with values that are not finite is whole, and marked.
    """
    found = []
    for one in ask_checkpoints("verify", checkpoints_of(path)):
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
@click.argument("path", default="@last", metavar="[RUN|CHECKPOINT]", shell_complete=runs)
@once("--step", type=Count(0), help="Of a run: this step.  [default: the newest]")
@json_option
def show(path: str, step: int | None, as_json: bool) -> int:
    """Print what a checkpoint's manifest says; whole with --json."""
    folder = checkpoints_of(path)
    if step is not None:
        folder = checkpoint_of_step(folder, step)
    (one,) = ask_checkpoints("show", folder)
    if as_json:
        print_json(one)
    else:
        click.echo(render_pairs(_pairs(one)))
    return int(ExitCode.OK)


def _quarantined(folder: Place) -> list[str]:
    """Names in the folder's quarantine/, which bounds them itself."""
    if isinstance(folder, str):
        return sorted(one["name"] for one in ask_checkpoints("quarantined", folder))
    place = folder / "quarantine"
    return sorted(path.name for path in place.iterdir()) if place.is_dir() else []


def _row(one: dict[str, Any], is_best: bool) -> tuple[str, ...]:
    bad = one["problems"]
    marks = ("best" if is_best else "", _not_finite(one))
    mark = f"cannot be used: {bad[0].splitlines()[0]}" if bad else "; ".join(filter(None, marks))
    size_now = size(one["bytes"]) if "bytes" in one else "-"
    attempt = number(display_number(one.get("attempt")))
    ranks, score = number(one.get("world_size")), number(one.get("score"))
    return (str(one["step"]), number(_epoch(one)), size_now, age(_age(one)), ranks, attempt, score, mark)


def _not_finite(one: dict[str, Any]) -> str:
    """Which tensors hold a nan or an infinity, the first of them by name; empty where none does."""
    keys: list[str] = one.get("non_finite") or []
    more = f" and {len(keys) - _KEYS_SHOWN} more" if len(keys) > _KEYS_SHOWN else ""
    return f"not finite: {', '.join(keys[:_KEYS_SHOWN])}{more}" if keys else ""


def _epoch(one: dict[str, Any]) -> int | None:
    """The epoch in which it was saved, from 1; the manifest counts whole epochs, and samples of the next."""
    done: int | None = one.get("epoch")
    return done if done and not one.get("samples_in_epoch") else display_number(done)


def _age(one: dict[str, Any]) -> float | None:
    try:
        return max(0.0, time.time() - datetime.fromisoformat(one["created_at"]).timestamp())
    except (KeyError, ValueError):
        return None


def _verdict(one: dict[str, Any]) -> str:
    name = Path(one["path"]).name
    if not one["problems"]:
        whole = f"{name}  whole  {size(one['bytes'])} in {len(one['files'])} file(s)"
        return "  ".join(filter(None, (whole, _copies(one), _not_finite(one))))
    return "\n".join(f"{name}  DAMAGED  {problem}" for problem in one["problems"])


def _copies(one: dict[str, Any]) -> str:
    """What the save could not compare, or could: of a sharded tensor, each part may be on one rank alone."""
    copies = one.get("copies")
    if copies is None:
        return ""
    return f"sharded, {copies} copies compared" if copies > 1 else "sharded, no copies to compare"


def _pairs(one: dict[str, Any]) -> list[tuple[str, str]]:
    manifest = one["manifest"]
    tensors = [
        f"{key}  {entry['dtype']}  {'x'.join(map(str, entry['shape'])) or 'scalar'}"
        for key, entry in sorted(manifest["tensors"].items())
    ]
    attempt, samples = display_number(manifest["attempt"]), manifest["samples_in_epoch"]
    ended = samples == manifest["data"].get("n") or (manifest["epoch"] and not samples)
    into = "complete" if ended else f"{samples} samples into it"
    position = f"epoch {_epoch(manifest)}, {into}, {manifest['samples_total']} samples in all"
    return [
        ("checkpoint", one["path"]),
        ("step", f"{manifest['step']} ({position})"),
        ("written", f"{manifest['created_at']} by attempt {attempt} of {manifest['run_id']}"),
        ("ranks", f"{manifest['world_size']}, strategy {manifest['strategy']}"),
        ("score", number(one["score"])),
        ("not finite", "\n".join(one["non_finite"]) or "none"),
        ("data", _inline(manifest["data"])),
        ("determinism", _inline(manifest["determinism"])),
        ("weights_hash", manifest["weights_hash"]),
        ("state_hash", manifest["state_hash"]),
        ("self_hash", manifest["self_hash"]),
        ("config_xxh3", manifest["config_xxh3"]),
        ("files", "\n".join(f"{entry['name']}  {size(entry['bytes'])}" for entry in manifest["files"])),
        ("aliases", "\n".join(f"{key} = {to}" for key, to in sorted(manifest["aliases"].items())) or "none"),
        ("tensors", "\n".join(tensors) or "none"),
    ]


def _inline(record: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in record.items()) or "-"


checkpoint.add_command(import_)
checkpoint.add_command(export)
checkpoint.add_command(copy)

COMMAND = checkpoint
