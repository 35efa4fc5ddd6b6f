"""Act as soon as the script has imported a module; imports nothing itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def act_after_import(name: str, act: Callable[[], object]) -> None:
    """Call `act` once this module has been executed: now, if that is so already."""
    if name in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _AfterImport(name, act))


class _AfterImport:
    """A finder that finds the module as the others do, and acts when it has been executed."""

    def __init__(self, name: str, act: Callable[[], object]) -> None:
        self._name = name
        self._act = act

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._act_after(spec.loader)
                return spec
        return None

    def _act_after(self, loader: Any) -> None:
        # Set on this one loader: its type, which inspect and others ask for, stays the same.
        execute = loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            self._act()

        loader.exec_module = execute_and_act
