"""Import the public names of a package on first use (PEP 562).

A package's `__init__` lists the module of each public name; the module is imported when the name is first
read. So `import dist_train` loads no torch.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any


def lazy_exports(
    package: str, public: Mapping[str, str], submodules: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package.

    Args:
        package: its `__name__`.
        public: public name -> the module that defines it.
        submodules: names of submodules that reading `package.name` imports.
    """

    def get(name: str) -> Any:
        if name in public:
            return getattr(importlib.import_module(public[name]), name)
        if name in submodules:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *public, *submodules})

    return get, names
