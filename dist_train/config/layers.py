"""Merge a config's plain data from file, overrides and flags; remember the origin of each value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dist_train.config.problems import KeyPath, Problem, dotted, shown
from dist_train.config.shorthand import bare_key, full_path, is_adapter

FILE, OVERRIDE, FLAG = 1, 2, 3

# Of such a pair only one may be set; one from a higher layer unsets the lower layer's, so that
# `trainer.steps=100` is enough if the file sets `epochs`.
_ALTERNATIVES = (
    ("trainer", "epochs", "steps"),
    ("checkpoint", "every_steps", "every_epochs"),
)


@dataclass(frozen=True)
class Where:
    """Where a value came from.

    Args:
        level: FILE, OVERRIDE or FLAG.
        origin: as `config show` prints it: "run.yaml:3", "override", "flag --seed".
        detail: as messages print it; an override in full.
    """

    level: int
    origin: str
    detail: str


@dataclass
class Layers:
    """The merged data; `put` sets one value over the layers below.

    Args:
        data: expanded plain data: components and the strategy are mappings here.
        where: for every path of `data`, what set it.
        problems: paths that could not be set.
    """

    data: dict[str, Any] = field(default_factory=dict)
    where: dict[KeyPath, Where] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def put_all(self, data: dict[str, Any], where: Callable[[KeyPath], Where]) -> None:
        """The first layer: a whole document."""
        self.data = self._expand(data, (), where, ())

    def put(self, path: KeyPath, value: Any, where: Where) -> None:
        """Set the value of one path, replacing everything below it."""
        path = full_path(path)
        parent: Any = self.data
        done: KeyPath = ()
        for part in path[:-1]:
            if (key := self._key(parent, part, done, path, where)) is None:
                return
            done = (*done, key)
            if (parent := self._child(parent, key, done, path, where)) is None:
                return
        if (last := self._key(parent, path[-1], done, path, where)) is None:
            return
        done = (*done, last)
        self.where = {place: old for place, old in self.where.items() if place[: len(done)] != done}
        parent[last] = self._expand(value, done, lambda _: where, ())

    def set_aside(self) -> None:
        """Of two alternatives from different layers, unset the lower layer's."""
        for section, first, second in _ALTERNATIVES:
            values = self.data.get(section)
            if not isinstance(values, dict) or values.get(first) is None or values.get(second) is None:
                continue
            levels = [self.where[(section, key)] for key in (first, second)]
            if levels[0].level == levels[1].level:
                continue
            loser, winner = (first, levels[1]) if levels[0].level < levels[1].level else (second, levels[0])
            values[loser] = None
            text = f"set aside by {winner.origin}"
            self.where[(section, loser)] = Where(winner.level, text, text)

    def find(self, path: KeyPath) -> Where | None:
        """What set this path, or its nearest parent that was set."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.where:
                return self.where[path[:length]]
        return None

    def _child(self, parent: Any, key: str | int, here: KeyPath, path: KeyPath, where: Where) -> Any:
        """The mapping or list at `here`, created if missing; None (and a problem) for a plain value."""
        child = parent.get(key) if isinstance(parent, dict) else parent[key]
        if child is None:
            child = parent[key] = {}
            self.where[here] = where
        if isinstance(child, dict | list):
            return child
        text = f"`{dotted(path)}` cannot be set: `{dotted(here)}` is {shown(child)}, not a mapping"
        self.problems.append(Problem(text, where.detail, path=path))
        return None

    def _key(
        self, parent: Any, part: str | int, done: KeyPath, path: KeyPath, where: Where
    ) -> str | int | None:
        """`part` as a key of a mapping or an index of a list; None (and a problem) if there is none."""
        if isinstance(parent, dict):
            return part
        if str(part).isdecimal() and int(part) < len(parent):
            return int(part)
        text = f"`{dotted(path)}` cannot be set: `{dotted(done)}` is a list of {len(parent)}"
        self.problems.append(Problem(text, where.detail, f"set the whole list: {dotted(done)}=[…]", path))
        return None

    def _expand(self, value: Any, path: KeyPath, where: Callable[[KeyPath], Where], source: KeyPath) -> Any:
        """Expand bare strings to mappings; `source` is the path in the document."""
        self.where[path] = where(source)
        key = bare_key(path)
        if key is not None and isinstance(value, str):
            self.where[(*path, key)] = where(source)
            return {key: value}
        if isinstance(value, list):
            return [self._expand(item, (*path, i), where, (*source, i)) for i, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        out: dict[str, Any] = {}
        for name, item in value.items():
            inner = full_path((*path, name))
            self._add(out, inner[len(path) :], self._expand(item, inner, where, (*source, name)), path)
        return out

    def _add(self, out: dict[str, Any], tail: KeyPath, item: Any, path: KeyPath) -> None:
        name = str(tail[0])
        if is_adapter(path) and name == "options":
            # Options may stand beside `name` or under `options`; both end here.
            if len(tail) == 2 and isinstance(out.get("options", {}), dict):
                out.setdefault("options", {})[str(tail[1])] = item
            elif isinstance(item, dict) and isinstance(out.get("options"), dict):
                out["options"].update(item)
            else:
                out["options"] = item
            return
        out[name] = item


def leaves(value: Any, path: KeyPath = ()) -> dict[KeyPath, Any]:
    """Every leaf of plain data; a list is one leaf unless it holds mappings."""
    if isinstance(value, dict) and value:
        items: list[tuple[str | int, Any]] = list(value.items())
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        items = list(enumerate(value))
    else:
        return {path: value}
    return {place: leaf for key, item in items for place, leaf in leaves(item, (*path, key)).items()}
