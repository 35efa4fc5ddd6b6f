"""Scripts written for `python -m torch.distributed.launch`, which passes --local_rank to each process.

Without it such a script takes its default, and all ranks of a node use the first GPU.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dist_train.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from dist_train.jobs.spec import Target

SPELLINGS = {"underscore": "--local_rank", "dash": "--local-rank"}
CHOICES = ("auto", *SPELLINGS, "none")


def local_rank_flag(asked: str | None, target: Target) -> tuple[str, tuple[str, ...]]:
    """The option by which each rank gets its local rank ("" for none), and notices.

    Args:
        asked: --legacy-local-rank; None or auto: if the script's source declares the option.
        target: its source is parsed, not imported.
    """
    if target.kind == "config":
        if asked is not None:
            raise UsageError(
                f"--legacy-local-rank {asked}: a config has no command line",
                hint="drop it; it is for scripts",
            )
        return "", ()
    if asked == "none":
        return "", ()
    if asked in SPELLINGS:
        return SPELLINGS[asked], ()
    tree = _source(target)
    flag = None if tree is None else next(_declared(tree), None)
    if tree is None or flag is None:
        return "", ()
    name = Path(target.value).name
    typed = [word for word in target.args if word.partition("=")[0] in SPELLINGS.values()]
    if typed:
        return "", (f"{typed[0]} stands after {name}: every rank gets it as it is typed",)
    if _has_sub_commands(tree):
        spelling = next(key for key, value in SPELLINGS.items() if value == flag)
        taken = f"{name} takes {flag}, but has sub-commands: not handed over"
        return "", (f"{taken} (--legacy-local-rank {spelling} does)",)
    taken = f"{name} takes {flag}: each rank gets its own, as from torch.distributed.launch"
    return flag, (f"{taken} (--legacy-local-rank none: not)",)


def _source(target: Target) -> ast.Module | None:
    """The script's syntax tree; None where it cannot be parsed, which its ranks will report."""
    with warnings.catch_warnings():
        # Such as an invalid escape "\d" in it: its ranks warn of that themselves.
        warnings.simplefilter("ignore")
        try:
            return _parsed(target)
        except (OSError, SyntaxError, ValueError, ConfigError):
            return None


def _parsed(target: Target) -> ast.Module | None:
    if target.kind == "script":
        return ast.parse(Path(target.value).read_bytes())
    from dist_train.config.find_source import find_module, parse

    module = find_module(target.value, [target.folder])
    return parse(find_module(f"{target.value}.__main__", [target.folder]) if module.is_package else module)


def _declared(tree: ast.Module) -> Iterator[str]:
    """Every spelling in a call of `add_argument` that takes a value."""
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "add_argument"):
            continue
        if any(word.arg == "action" and ast.unparse(word.value) != "'store'" for word in call.keywords):
            continue
        for word in call.args:
            if isinstance(word, ast.Constant) and word.value in SPELLINGS.values():
                yield str(word.value)


def _has_sub_commands(tree: ast.Module) -> bool:
    """Whether it has sub-commands: an option before a sub-command may be unknown to the parser."""
    return any(isinstance(node, ast.Attribute) and node.attr == "add_subparsers" for node in ast.walk(tree))
