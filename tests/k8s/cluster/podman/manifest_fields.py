"""Read a manifest field by field; unread fields are an error, so that none is ignored silently."""

from __future__ import annotations

from typing import TypeVar

from cluster.objects import Manifest

T = TypeVar("T")


class UnsupportedField(ValueError):
    """A field or value that cannot be translated to podman."""


class Fields:
    """Fields of one mapping; leaving the `with` block checks that all of them were read.

    with Fields("spec", {"command": ["true"]}) as spec:
        argv = spec.take("command", [])
    """

    def __init__(self, path: str, values: Manifest) -> None:
        self._path = path
        self._unread = dict(values)

    def __enter__(self) -> Fields:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._unread:
            raise UnsupportedField(f"{self._path}: {', '.join(sorted(self._unread))}")

    def take(self, name: str, default: T) -> T:
        """Read a field."""
        value: T = self._unread.pop(name, default)
        return value

    def demand(self, name: str, *known: object) -> None:
        """Check that the value is one of these; None: the field may be absent."""
        value = self._unread.pop(name, None)
        if value not in known:
            raise UnsupportedField(f"{self._path}.{name}: {value!r}")

    def ignore(self, *names: str) -> None:
        """Mark fields as read that do not affect a container; the caller comments why."""
        for name in names:
            self._unread.pop(name, None)

    def inside(self, name: str) -> Fields:
        """Fields of a nested mapping."""
        return Fields(f"{self._path}.{name}", self.take(name, Manifest()))

    def each(self, name: str) -> list[Fields]:
        """Items of a nested list."""
        items: list[Manifest] = self.take(name, [])
        return [Fields(f"{self._path}.{name}[{index}]", item) for index, item in enumerate(items)]
