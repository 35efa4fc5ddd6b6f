"""The checkpoint that arguments mean: the newest, the best or one step of a run; or a directory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dist_train.cli.run.checkpoint_place import Place, place_of_checkpoints
from dist_train.cli.run.checkpoint_process import ask_checkpoints
from dist_train.cli.run.find_run import find_run
from dist_train.config.bucket_url import scheme_of
from dist_train.errors import NotFoundError, UsageError
from dist_train.rundir import RunDir
from dist_train.rundir.step_names import parse_step, step_name


def choose_checkpoint(source: str, step: int | None, best: bool) -> Place:
    """A checkpoint; or a folder of checkpoints, of which the newest whole one is opened.

    Args:
        source: a run, a folder of checkpoints, or one checkpoint; the latter two also by their URL.
        step: of this step.
        best: the best by the run's own `checkpoint.keep_best`.

    Raises:
        NotFoundError: no such run or checkpoint; UsageError: both are asked for.
    """
    if step is not None and best:
        raise UsageError(f"--step {step} and --best may be two checkpoints", hint="give one of them")
    folder = checkpoints_of(source)
    if step is not None:
        return checkpoint_of_step(folder, step)
    if not best:
        return folder
    rule = best_rule(source)
    chosen = best_steps(ask_checkpoints("list", folder), None if rule is None else (rule[0], 1))
    if not chosen:
        raise NotFoundError(
            f"no checkpoint in {folder} is the best one",
            cause="its config has no checkpoint.keep_best" if rule is None else "none has a score yet",
            hint="give --step, or neither for the newest",
        )
    return checkpoint_of_step(folder, chosen.pop())


def is_weights(path: Path) -> bool:
    """Whether this is one set of weights, of which no step can be chosen: a file, or what another tool wrote.

    A directory of torch.distributed.checkpoint has `.metadata`, one of several safetensors files an index.
    """
    if not path.is_dir():
        return path.is_file()
    indexed = next(path.glob("*.safetensors.index.json"), None) is not None
    return (indexed or (path / ".metadata").is_file()) and not _holds_checkpoints(path)


def checkpoints_of(source: str) -> Place:
    """A checkpoint, a folder of checkpoints, or the run of that name's."""
    if scheme_of(source) is not None:
        return source.rstrip("/")
    path = Path(source)
    if path.is_dir() and not RunDir(path).is_run and _holds_checkpoints(path):
        return path.absolute()
    return place_of_checkpoints(find_run(source))


def _holds_checkpoints(path: Path) -> bool:
    return path.name.startswith("step-") or (path / "manifest.json").exists() or any(path.glob("step-*"))


def checkpoint_of_step(folder: Place, step: int) -> Place:
    """The checkpoint of that step in a folder; NotFoundError names those that are there."""
    if isinstance(folder, str):
        there = {int(one["step"]): str(one["path"]) for one in ask_checkpoints("list", folder)}
        if step in there:
            return there[step]
        raise _no_such_step(folder, step, sorted(there))
    path = folder / step_name(step)
    if path.is_dir():
        return path
    steps = sorted(found for p in folder.glob("step-*") if (found := parse_step(p.name)) is not None)
    raise _no_such_step(folder, step, steps)


def _no_such_step(folder: Place, step: int, there: list[int]) -> NotFoundError:
    return NotFoundError(
        f"there is no checkpoint of step {step} in {folder}",
        cause=f"there are: {', '.join(map(str, there)) or 'none'}",
    )


def best_rule(run: str) -> tuple[str, int] | None:
    """(mode, how many) of the run's own config; None for a run without one."""
    if scheme_of(run) is not None:
        return None
    path = Path(run)
    if path.is_dir() and not RunDir(path).is_run:
        return None
    config = find_run(run).config
    if not config.exists():
        return None
    from dist_train.config import load_config

    best = load_config(config).config.checkpoint.keep_best
    return None if best is None else (best.mode, best.n)


def best_steps(found: Iterable[dict[str, Any]], rule: tuple[str, int] | None) -> set[int]:
    """Steps of the best, by their scores and (mode, how many); none without a rule."""
    if rule is None:
        return set()
    mode, count = rule
    sign = 1 if mode == "min" else -1
    scored = [one for one in found if one["score"] is not None and not one["problems"]]
    return {one["step"] for one in sorted(scored, key=lambda one: (sign * one["score"], one["step"]))[:count]}
