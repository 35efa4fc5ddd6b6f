"""Map the names that wrappers prefix (`module.`, `_orig_mod.`) to the names of the plain module."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dist_train.checkpoint.state.module_state import plain_name
from dist_train.errors import CheckpointError

# The prefixes of DDP and DataParallel, torch.compile and FSDP.
WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module")


@dataclass(frozen=True)
class NameMapping:
    """The plain name of every given name, and what was dropped."""

    names: dict[str, str]
    dropped: tuple[str, ...]
    count: int

    def description(self) -> str | None:
        """`dropped leading 'module.' from 12 names`; None where nothing was dropped."""
        if not self.count:
            return None
        prefixes = " and ".join(f"'{prefix}'" for prefix in self.dropped)
        return f"dropped leading {prefixes} from {self.count} names"


def fit_names(given: Collection[str], expected: Collection[str]) -> NameMapping:
    """Drop the number of leading wrapper parts with which most names fit; none where none has to go.

    Only whole leading parts count: `my_module.fc` and `encoder.module.fc` stay as they are.

    Raises:
        CheckpointError: two names would become one.
    """
    known = set(expected)
    deepest = max((_depth(name) for name in given), default=0)
    fitting = [_score([_drop(name, depth) for name in given], known) for depth in range(deepest + 1)]
    depth = fitting.index(max(fitting))
    return _renamed({name: _plain(_drop(name, depth), known) for name in given}, depth)


def drop_shared(given: Collection[str]) -> NameMapping:
    """Drop the leading wrapper parts that ALL names have: for use without a model to compare with."""
    depth = min((_depth(name) for name in given), default=0)
    heads = {tuple(name.split(".")[:depth]) for name in given}
    while len(heads) > 1:
        heads = {head[:-1] for head in heads}
    shared = len(next(iter(heads), ()))
    return _renamed({name: _drop(name, shared) for name in given}, shared)


def _depth(name: str) -> int:
    parts = name.split(".")
    return next((i for i, part in enumerate(parts) if part not in WRAPPERS), len(parts) - 1)


def _drop(name: str, depth: int) -> str:
    return ".".join(name.split(".")[min(depth, _depth(name)) :])


def _score(names: Sequence[str], expected: set[str]) -> tuple[int, int]:
    """Count the names that fit, and those that fit without a change."""
    exact = sum(name in expected for name in names)
    return exact + sum(name not in expected and plain_name(name) in expected for name in names), exact


def _plain(name: str, expected: set[str]) -> str:
    # A compiled submodule: the model's own names are read without this part too.
    return name if name in expected or plain_name(name) not in expected else plain_name(name)


def _renamed(names: dict[str, str], depth: int) -> NameMapping:
    taken: dict[str, str] = {}
    for name, plain in names.items():
        other = taken.setdefault(plain, name)
        if other != name:
            raise CheckpointError(
                f"'{other}' and '{name}' both become '{plain}' without what wrappers put in front",
                hint="rename one of them before it is saved",
            )
    heads = [".".join(name.split(".")[: min(depth, _depth(name))]) for name in names]
    cut = [f"{head}." for head in heads if head]
    return NameMapping(names, tuple(dict.fromkeys(cut)), len(cut))
