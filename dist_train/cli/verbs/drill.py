"""`dist-train drill`: train the digits twice, kill a rank of the second, compare every bit."""

from __future__ import annotations

import random
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from dist_train.cli.options.param_types import Count
from dist_train.cli.options.verb import Verb, examples
from dist_train.cli.options.verb_options import SPELLINGS, once
from dist_train.cli.options.working_folder import refuse_missing_folder
from dist_train.cli.run.drill_run import EVERY_STEPS, STEPS, Kill, Trained, train
from dist_train.errors import ConfigError, ExitCode, UnavailableError
from dist_train.rundir.directory import take_free_name

HASHES = ("weights_hash", "state_hash", "metrics_hash")
_DIFFERENT = 1
_TAIL_LINES = 30


@click.command(
    cls=Verb,
    context_settings=SPELLINGS,
    epilog=examples("dist-train drill", "dist-train drill --ranks 2 --seed 7 --keep  # the same kill again"),
)
@once("--ranks", type=Count(1), metavar="N", help="Processes, on CPU (gloo).  [default: 3]")
@once(
    "--seed",
    type=Count(0),
    metavar="S",
    help="Whom to kill, and when.  [default: drawn at random, and printed]",
)
@click.option("--keep", is_flag=True, help="Keep both runs, in ./runs/drill-K.")
def drill(ranks: int | None, seed: int | None, keep: bool) -> int:
    """Train the digits twice, kill -9 a random rank of the second, and compare the hashes.

    Ends with 0 and "same bits" if weights, optimizer state and metrics are equal to the last bit, with 1 and
    the difference if not. Takes some seconds, leaves nothing behind.
    """
    refuse_missing_folder()
    ranks = ranks or 3
    seed = secrets.randbelow(10_000) if seed is None else seed
    kill = choose(seed, ranks)
    _say(f"drill --ranks {ranks} --seed {seed}: the digits, {STEPS} steps, a checkpoint every {EVERY_STEPS}")
    with _terminable(), _place(keep) as folder:
        _say("first, undisturbed")
        whole = train(folder / "undisturbed", ranks)
        if whole.code != 0:
            return _failed(whole)
        _say(f"again; rank {kill.rank} is killed (kill -9) when step {kill.step} begins")
        killed = train(folder / "killed", ranks, kill)
        if killed.code != 0:
            return _failed(killed)
        code = report(whole, killed, kill)
        if keep:
            _say(f"kept: {folder}; dist-train list --all-dirs {folder}")
        return code


def choose(seed: int, ranks: int) -> Kill:
    """The rank, and a step after the first checkpoint, that follow from the seed."""
    draw = random.Random(seed)
    return Kill(draw.randrange(ranks), draw.randrange(EVERY_STEPS + 2, STEPS))


def report(whole: Trained, killed: Trained, kill: Kill) -> int:
    """Both runs' hashes, and the verdict as the last line; returns the exit code."""
    for name, one in (("undisturbed", whole), ("killed", killed)):
        click.echo(f"{name:<12} {one.seconds:5.1f} s  " + "  ".join(_hash_texts(one)))
    if (why := objection(whole, killed, kill)) is not None:
        click.echo(f"no verdict: {why}")
        return _DIFFERENT
    click.echo(f"{'':<12} killed once, went on from the checkpoint of step {killed.resumed_from}")
    different = [name for name in HASHES if _hash(whole, name) != _hash(killed, name)]
    if not different:
        click.echo("same bits")
        return int(ExitCode.OK)
    click.echo("NOT the same bits:")
    for name in different:
        click.echo(f"  {name}: {_hash(whole, name)} undisturbed, {_hash(killed, name)} killed")
    return _DIFFERENT


def objection(whole: Trained, killed: Trained, kill: Kill) -> str | None:
    """Why equal hashes would prove nothing; None if they do."""
    if not all(_hash(one, name) for one in (whole, killed) for name in HASHES):
        return "a result is missing"
    if whole.restarts:
        return "the undisturbed run was restarted"
    if not killed.killed or killed.restarts != [kill.rank]:
        return f"rank {kill.rank} was not killed, or another one died as well"
    if killed.resumed_from is None:
        return "the killed run went on from no checkpoint"
    return None


def _hash(one: Trained, name: str) -> str:
    return str(getattr(one.result, name, ""))


def _hash_texts(one: Trained) -> list[str]:
    return [f"{name.removesuffix('_hash')} {_hash(one, name)[:16]}" for name in HASHES]


def _failed(one: Trained) -> int:
    """Print the end of the launch's output; return its exit code."""
    lines = one.output.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
    click.echo("\n".join(lines), err=True)
    _say(f"the run in {one.run.path.name} ended with exit code {one.code}; --keep keeps its records")
    return one.code if one.code > 0 else 128 - one.code


@contextmanager
def _place(keep: bool) -> Iterator[Path]:
    if keep:
        yield _kept()
        return
    try:
        folder = Path(tempfile.mkdtemp(prefix="dist-train-drill-"))
    except OSError as error:
        raise UnavailableError(f"no temporary folder: {error}", hint="set TMPDIR, or --keep") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _kept() -> Path:
    root = Path("runs").absolute()
    try:
        return take_free_name(root, "drill")
    except ConfigError as error:
        raise ConfigError(
            error.what, cause=error.cause, hint="cd to a folder of yours, or drop --keep"
        ) from error


@contextmanager
def _terminable() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that the run is ended and its folder removed, as after Ctrl-C."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(text: str) -> None:
    click.echo(f"[dist-train] {text}", err=True)


COMMAND = drill
