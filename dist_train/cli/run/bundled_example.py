"""The example that dist-train includes, in the wheel and in a checkout."""

from __future__ import annotations

from pathlib import Path, PurePath

import dist_train
from dist_train.errors import NotFoundError

_NAME = "examples/digits.yaml"


def bundled_example() -> Path:
    """examples/digits.yaml: inside the installed package, or beside it in a checkout."""
    package = Path(dist_train.__file__).resolve().parent
    for place in (package / _NAME, package.parent / _NAME):
        if place.is_file():
            return place
    raise NotFoundError("the bundled examples/digits.yaml is missing", hint="reinstall dist-train")


def stands_for_bundled(word: str) -> bool:
    """Whether `examples/digits.yaml` was typed where there is none: README's commands work anywhere."""
    return PurePath(word) == PurePath(_NAME) and not Path(word).exists()
