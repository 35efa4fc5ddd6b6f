"""A manifest read field by field: one that nobody took is an error, so that none is dropped in silence."""

from __future__ import annotations

from typing import TypeVar

from k8s_objects import Manifest

T = TypeVar("T")


class NotTranslated(ValueError):
    """A field, or a value of one, that a container here would not have."""


class Fields:
    """The fields of one mapping; leaving the `with` block asks that all of them were taken.

    with Fields("spec", {"command": ["true"]}) as spec:
        words = spec.take("command", [])
    """

    def __init__(self, path: str, values: Manifest) -> None:
        self._path = path
        self._left = dict(values)

    def __enter__(self) -> Fields:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._left:
            raise NotTranslated(f"{self._path}: {', '.join(sorted(self._left))}")

    def take(self, name: str, default: T) -> T:
        """Its value."""
        value: T = self._left.pop(name, default)
        return value

    def demand(self, name: str, *known: object) -> None:
        """Its value is one of these; None: it may be left out."""
        value = self._left.pop(name, None)
        if value not in known:
            raise NotTranslated(f"{self._path}.{name}: {value!r}")

    def leave(self, *names: str) -> None:
        """What runs a container has nothing to do for them: the caller says why."""
        for name in names:
            self._left.pop(name, None)

    def inside(self, name: str) -> Fields:
        """The fields of a mapping in it."""
        return Fields(f"{self._path}.{name}", self.take(name, Manifest()))

    def each(self, name: str) -> list[Fields]:
        """The items of a list in it."""
        items: list[Manifest] = self.take(name, [])
        return [Fields(f"{self._path}.{name}[{index}]", item) for index, item in enumerate(items)]
