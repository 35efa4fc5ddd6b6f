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
    from dist_train.config.component import StrategyConfig

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


@dataclass(frozen=True)
class ConfigSource:
    """From what the model of a config is built, for a strategy whose options name its modules.

    Args:
        text: of the config.
        folder: from which its own modules are imported.
        forward: run the loss too, without values: it reads the training data.
    """

    text: str
    folder: str
    forward: bool = False


def check_strategy(
    strategy: StrategyConfig,
    accumulate: int,
    world_size: int,
    device: str | None,
    origins: Mapping[str, str],
    source: ConfigSource | None = None,
) -> StrategyFit:
    """Refuse a strategy whose options are wrong, or whose mesh does not have as many ranks as the job.

    Args:
        accumulate: micro-batches of an optimizer step.
        device: `cpu` or `cuda`; None: not known.
        origins: where each value of the config was set.
        source: None: the model is not looked at.

    Raises:
        ConfigError: naming the line, as for any other value.
    """
    if not _may_refuse(strategy, world_size):
        return StrategyFit()
    command, asked = _question(strategy, accumulate, world_size, device, source)
    try:
        done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return StrategyFit(unchecked=_not_checked(strategy.name, str(error)))
    answer = _answer(done.stdout)
    if done.returncode == ExitCode.CONFIG and answer is not None:
        _refuse(strategy, ConfigError(answer["what"], cause=answer["cause"], hint=answer["hint"]), origins)
    if done.returncode != 0 or answer is None:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return StrategyFit(unchecked=_not_checked(strategy.name, last))
    unchecked = answer.get("unchecked")
    return StrategyFit(
        tuple((name, size) for name, size in answer["mesh"]),
        None if unchecked is None else _not_checked(strategy.name, unchecked),
    )


def _question(
    strategy: StrategyConfig,
    accumulate: int,
    world_size: int,
    device: str | None,
    source: ConfigSource | None,
) -> tuple[list[str], str]:
    """The command of the process that is asked, and what it reads."""
    if source is None or not _model_decides(strategy, world_size, source):
        words = [strategy.name, str(world_size), device or "-", json.dumps(strategy.options), str(accumulate)]
        return [sys.executable, "-P", "-m", "dist_train.strategies", *words], ""
    asked = {
        "config": source.text,
        "folder": source.folder,
        "forward": source.forward,
        "world_size": world_size,
        "device": device,
        "accumulate": accumulate,
    }
    return [sys.executable, "-P", "-m", "dist_train.estimate.model_check"], json.dumps(asked)


def _model_decides(strategy: StrategyConfig, world_size: int, source: ConfigSource) -> bool:
    """Whether the model is looked at: `NEEDS_MODEL` of the strategy's file.

    True: wherever there are several ranks. Names of options that name modules: where one is given, and by
    `config check` always.
    """
    needs = registry.declared("strategies", strategy.name, "NEEDS_MODEL")
    if isinstance(needs, tuple):
        return any(name in strategy.options for name in needs) or (source.forward and world_size > 1)
    return needs is True and world_size > 1


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
    if "the optimizer" in error.what:
        named = ["optimizer.args.fused", "optimizer.target"]
    where = next((origins[path] for path in (*named, "strategy.name") if path in origins), "")
    cause = f" ({error.cause})" if error.cause else ""
    text = f"`strategy`: {error.what}{cause}"
    raise_problems([Problem(text, "" if where == "default" else where, error.hint)], "the config")


def _not_checked(name: str, why: str) -> str:
    return f"strategy {name} could not be checked here ({why}): the ranks will check it"
