"""Check the strategy against the job's size before anything is submitted, in a process that loads torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dist_train import registry
from dist_train.config.problems import Problem, raise_problems
from dist_train.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from pathlib import Path

    from dist_train.config.component import StrategyConfig
    from dist_train.config.schema import RunConfig

# A first import of torch from a network file system takes minutes.
_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class StrategyFit:
    """What is known of a strategy before the job starts.

    Args:
        mesh: names and sizes of its dimensions; None: not asked for, since nothing could be wrong.
        unchecked: why it could not be checked here, for a notice.
    """

    mesh: tuple[tuple[str, int], ...] | None = None
    unchecked: str | None = None


def check_strategy(
    strategy: StrategyConfig,
    accumulate: int,
    world_size: int,
    device: str | None,
    origins: Mapping[str, str],
) -> StrategyFit:
    """Refuse a strategy whose options are wrong, or whose mesh does not have as many ranks as the job.

    Args:
        accumulate: micro-batches of an optimizer step.
        device: `cpu` or `cuda`; None: not known.
        origins: where each value of the config was set.

    Raises:
        ConfigError: naming the line, as for any other value.
    """
    if not _may_refuse(strategy, world_size):
        return StrategyFit()
    options = json.dumps(strategy.options)
    command = [sys.executable, "-P", "-m", "dist_train.strategies", strategy.name, str(world_size)]
    try:
        done = subprocess.run(
            [*command, device or "-", options, str(accumulate)],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return StrategyFit(unchecked=_not_checked(strategy.name, str(error)))
    answer = _answer(done.stdout)
    if done.returncode == ExitCode.CONFIG and answer is not None:
        _refuse(strategy, ConfigError(answer["what"], cause=answer["cause"], hint=answer["hint"]), origins)
    if done.returncode != 0 or answer is None:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return StrategyFit(unchecked=_not_checked(strategy.name, last))
    return StrategyFit(tuple((name, size) for name, size in answer["mesh"]))


def check_model(
    config: RunConfig, folder: Path, nodes: int, procs: int, origins: Mapping[str, str]
) -> str | None:
    """Refuse a model that its strategy cannot cut up so, where it says that the model decides about that.

    The model is built without values in a process of its own, which imports what the config names.

    Args:
        folder: from which that is imported.

    Returns:
        why it could not be checked here, for a notice.

    Raises:
        ConfigError: naming the line, as for any other value.
    """
    name = config.strategy.name
    if nodes * procs == 1 or not registry.declares("strategies", name, "FITS_BY_MODEL"):
        return None
    from dist_train.config import dump_config

    asked = {
        "config": dump_config(config),
        "folder": str(folder),
        "on_gpu": False,
        "nodes": nodes,
        "gpus_per_node": procs,
        "fit": True,
    }
    command = [sys.executable, "-P", "-m", "dist_train.estimate"]
    try:
        done = subprocess.run(
            command, input=json.dumps(asked), capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return _not_checked(name, str(error))
    answer = _answer(done.stdout)
    if done.returncode == ExitCode.CONFIG and answer is not None:
        unfit = ConfigError(answer["what"], cause=answer["cause"], hint=answer["hint"])
        _refuse(config.strategy, unfit, origins)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return _not_checked(name, last)
    return None


def _may_refuse(strategy: StrategyConfig, world_size: int) -> bool:
    """Whether anything can be wrong: loading torch for the answer takes seconds."""
    if strategy.options:
        return True
    return world_size > 1 and not registry.declares("strategies", strategy.name, "FITS_ANY_SIZE")


def _answer(text: str) -> dict[str, Any] | None:
    """The last line: what a strategy's module prints while it is imported comes before it."""
    try:
        found = json.loads((text.strip().splitlines() or [""])[-1])
    except json.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _refuse(strategy: StrategyConfig, error: ConfigError, origins: Mapping[str, str]) -> None:
    named = [
        f"strategy.options.{name}"
        for name in strategy.options
        if re.search(rf"\b{re.escape(name)}\b", error.what)
    ]
    if "trainer.accumulate" in error.what:
        named = [*named, "trainer.accumulate"]
    where = next((origins[path] for path in (*named, "strategy.name") if path in origins), "")
    cause = f" ({error.cause})" if error.cause else ""
    text = f"`strategy`: {error.what}{cause}"
    raise_problems([Problem(text, "" if where == "default" else where, error.hint)], "the config")


def _not_checked(name: str, why: str) -> str:
    return f"strategy {name} could not be checked here ({why}): the ranks will check it"
