"""Overrides on the command line: `trainer.epochs=3`, the value read as YAML by the file's own rules."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dist_train.config.layers import OVERRIDE, Layers, Where, leaves
from dist_train.config.problems import Path, Problem, dotted, shown
from dist_train.config.yaml_reader import read_yaml
from dist_train.errors import ConfigError, UsageError


@dataclass(frozen=True)
class Override:
    """One `a.b=c`: `text` as typed, its path and its value."""

    text: str
    path: Path
    value: Any

    @property
    def where(self) -> Where:
        """As origins and messages name it."""
        return Where(OVERRIDE, "override", f"override {self.text}")


def parse_overrides(texts: Sequence[str]) -> tuple[list[Override], list[Problem]]:
    """Parse all; shorter paths first, so that `model=x:Y model.args.width=3` means one thing in any order.

    Raises:
        UsageError: not of the form a.b=c, or one place given two values.
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
            f"{text!r} is not an override", mend="write it as key.inner=value, for example trainer.epochs=3"
        )
    if not value.strip():
        raise UsageError(f"the override {text!r} has no value", mend=f"to unset it: {name}=null")
    try:
        tree = read_yaml(value, f"override {text}")
    except ConfigError as error:
        quoted = shlex.quote(f"{name}={json.dumps(value)}")
        raise UsageError(str(error), mend=f"to mean it as text: {quoted}") from None
    for problem in tree.problems:
        inner = problem.path or ()
        said = problem.text.replace(f"`{dotted(inner)}`", f"`{dotted((*path, *inner))}`", 1)
        mend = problem.mend
        if not inner and mend is not None and mend.startswith("quote it"):
            # A shell eats one layer of quotes, so the mend shows the words to type.
            mend = f"quote it for YAML and for the shell: {shlex.quote(f'{name}={json.dumps(value)}')}"
        problems.append(Problem(said, f"override {text}", mend, (*path, *inner), problem.spoils))
    return Override(text, path, tree.data)


def _refuse_contradictions(overrides: Sequence[Override]) -> None:
    seen: dict[Path, tuple[Any, str]] = {}
    for override in overrides:
        alone = Layers()
        alone.put(override.path, override.value, override.where)
        for path, value in leaves(alone.data).items():
            if path in seen and json.dumps(seen[path][0]) != json.dumps(value):
                raise UsageError(
                    f"`{dotted(path)}` is given twice: {shown(seen[path][0])} and {shown(value)}",
                    cause=f"{seen[path][1]} and {override.text}",
                    mend="keep one of the two",
                )
            seen.setdefault(path, (value, override.text))
