"""Overrides on the command line: `trainer.epochs=3`, the value read as YAML by the rules of a file."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dist_train.config.layers import OVERRIDE, Layers, Where, leaves
from dist_train.config.problems import KeyPath, Problem, dotted, shown
from dist_train.config.yaml_reader import read_yaml
from dist_train.errors import ConfigError, UsageError


@dataclass(frozen=True)
class Override:
    """One `a.b=c`: `text` as typed, its path and its value."""

    text: str
    path: KeyPath
    value: Any

    @property
    def where(self) -> Where:
        """Its origin, for `config show` and messages."""
        return Where(OVERRIDE, "override", f"override {self.text}")


def parse_overrides(texts: Sequence[str]) -> tuple[list[Override], list[Problem]]:
    """Parse all; shorter paths first, so that `model=x:Y model.args.width=3` does not depend on the order.

    Raises:
        UsageError: not of the form a.b=c, or one path given two values.
    """
    problems: list[Problem] = []
    overrides = [_parse(text, problems) for text in texts]
    overrides.sort(key=lambda override: len(override.path))
    _refuse_contradictions(overrides)
    return overrides, problems


def _parse(text: str, problems: list[Problem]) -> Override:
    name, equals, value = text.partition("=")
    path = tuple(name.strip().split("."))
    if not equals or not all(path):
        raise UsageError(
            f"{text!r} is not an override", hint="write it as key.inner=value, for example trainer.epochs=3"
        )
    if not value.strip():
        raise UsageError(f"the override {text!r} has no value", hint=f"to unset it: {name}=null")
    try:
        tree = read_yaml(value, f"override {text}")
    except ConfigError as error:
        quoted = shlex.quote(f"{name}={json.dumps(value)}")
        raise UsageError(str(error), hint=f"to mean it as text: {quoted}") from None
    for problem in tree.problems:
        inner = problem.path or ()
        message = problem.text.replace(f"`{dotted(inner)}`", f"`{dotted((*path, *inner))}`", 1)
        hint = problem.hint
        if not inner and hint is not None and hint.startswith("quote it"):
            # A shell eats one layer of quotes, so the hint shows what to type.
            hint = f"quote it for YAML and for the shell: {shlex.quote(f'{name}={json.dumps(value)}')}"
        problems.append(Problem(message, f"override {text}", hint, (*path, *inner), problem.unreadable))
    return Override(text, path, tree.data)


def _refuse_contradictions(overrides: Sequence[Override]) -> None:
    seen: dict[KeyPath, tuple[Any, str]] = {}
    for override in overrides:
        alone = Layers()
        alone.put(override.path, override.value, override.where)
        for path, value in leaves(alone.data).items():
            if path in seen and json.dumps(seen[path][0]) != json.dumps(value):
                raise UsageError(
                    f"`{dotted(path)}` is given twice: {shown(seen[path][0])} and {shown(value)}",
                    cause=f"{seen[path][1]} and {override.text}",
                    hint="keep one of the two",
                )
            seen.setdefault(path, (value, override.text))
