"""reference/python-api.md: the public names of each package, from signatures and docstrings."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

from reference_pages.markdown import escaped

HEAD = """\
# Python API

    import dist_train as dt

The names in `__all__` of these packages are the public ones; what else a module holds may change. Importing
`dist_train` loads no torch: names are resolved on first use.
"""
PACKAGES = (
    "dist_train",
    "dist_train.checkpoint",
    "dist_train.data",
    "dist_train.trainer",
    "dist_train.inference",
    "dist_train.distributed",
    "dist_train.strategies",
    "dist_train.resilience",
    "dist_train.observability",
    "dist_train.jobs",
    "dist_train.rundir",
    "dist_train.datasets",
    "dist_train.models",
    "dist_train.testing",
)
_ARGUMENT = re.compile(r"\s+(?P<name>\*{0,2}\w+(?:, \w+)*):\s+(?P<text>.*)")


def page() -> str:
    """The whole page; an object that two packages export stands with the first."""
    seen: dict[int, str] = {}
    parts = [HEAD]
    for name in PACKAGES:
        package = importlib.import_module(name)
        summary, _, _ = (inspect.getdoc(package) or "").partition("\n\n")
        parts.append(f"## {name}\n\n{_prose(summary)}\n")
        for public in sorted(package.__all__):
            value, full = getattr(package, public), f"{name}.{public}"
            if not public.startswith("_") and callable(value) and seen.setdefault(id(value), full) == full:
                parts += _described(full, value)
    return "\n".join(parts)


def _described(full: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        methods = "\n".join(_members(value))
        yield f"::::{{py:class}} {full}{_signature(value)}\n{_prose(_own_doc(value))}\n\n{methods}\n::::\n"
    else:
        yield f"::::{{py:function}} {full}{_signature(value)}\n{_prose(inspect.getdoc(value))}\n::::\n"


def _members(owner: type) -> Iterator[str]:
    """Public methods and properties that the class itself defines and documents."""
    for name, member in vars(owner).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            yield f":::{{py:property}} {name}\n{_prose(inspect.getdoc(member))}\n:::\n"
        function = getattr(member, "__func__", member)
        if inspect.isfunction(function):
            yield f":::{{py:method}} {name}{_signature(function)}\n{_prose(inspect.getdoc(function))}\n:::\n"


def _own_doc(owner: type) -> str:
    """The docstring; that which a dataclass makes of its fields is none."""
    text = inspect.cleandoc(owner.__doc__ or "")
    return "" if text.startswith(f"{owner.__name__}(") else text


def _signature(value: Any) -> str:
    """Parameters with annotations as they are written, and the result."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "()"
    parts: list[str] = []
    starred = False
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        starred = starred or parameter.kind is parameter.VAR_POSITIONAL
        parts.append(_parameter(parameter))
    result = "" if inspect.isclass(value) else _annotation(signature.return_annotation, " -> ")
    return f"({', '.join(parts)}){result}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    default = "" if parameter.default is parameter.empty else f" = {_default(parameter.default)}"
    return f"{stars}{parameter.name}{_annotation(parameter.annotation, ': ')}{default}"


def _default(value: Any) -> str:
    """As written; an object whose text is an address is shown by its class."""
    text = repr(value)
    return "…" if " at 0x" in text or "<" in text else text


def _annotation(annotation: Any, before: str) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return f"{before}{text}"


def _prose(docstring: str | None) -> str:
    """A docstring as Markdown: `Args:` and `Raises:` become lists, their `name: text` lines the items."""
    lines: list[str] = []
    in_arguments = False
    for line in (docstring or "").splitlines():
        if found := re.fullmatch(r"(Args|Raises|Attributes|Returns):", line):
            in_arguments = True
            lines += ["", *([] if found[1] == "Args" else [f"{found[1]}:", ""])]
        elif in_arguments and (found := _ARGUMENT.fullmatch(line)):
            lines.append(f"- `{found['name']}`: {escaped(found['text'])}")
        elif in_arguments and line.startswith("  "):
            lines.append(f"  {escaped(line.strip())}")
        else:
            in_arguments = in_arguments and not line.strip()
            lines.append(line if line.startswith("    ") else escaped(line))
    return "\n".join(lines)
