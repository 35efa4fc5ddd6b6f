"""HTML and SVG elements whose texts and attributes are escaped: records hold what others wrote."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

# What HTML does not allow in a text; a terminal's escape codes are among them.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_VOID = {"meta", "input", "br", "col", "line", "rect", "circle", "path", "polyline"}


class Markup(str):
    """Text that is HTML already, made by `tag` or `joined`."""

    __slots__ = ()


Child = str | Markup | None


def escape(text: object) -> Markup:
    """The text as HTML; control characters and halves of surrogate pairs become U+FFFD."""
    if isinstance(text, Markup):
        return text
    return Markup(html.escape(_CONTROL.sub("\ufffd", str(text))))


def tag(name: str, /, *children: Child, **attributes: object) -> Markup:
    """One element: `tag("td", text, class_="number")`; attributes that are None are left out."""
    given = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    if name in _VOID and not children:
        return Markup(f"<{name}{given}/>")
    return Markup(f"<{name}{given}>{joined(children)}</{name}>")


def joined(children: Iterable[Child]) -> Markup:
    """Elements and texts one after the other."""
    return Markup("".join(escape(child) for child in children if child is not None))


def table(heads: Sequence[Child], rows: Iterable[Sequence[Child]], caption: Child = None) -> Markup:
    """A table whose first column heads its rows, in a box of its own that scrolls where it is too wide."""
    head = tag("tr", *(_is_cell(cell) or tag("th", cell, scope="col") for cell in heads))
    body = [tag("tr", *(_cell(cell, first=place == 0) for place, cell in enumerate(row))) for row in rows]
    named = None if caption is None else tag("caption", tag("span", caption))
    whole = tag("table", named, tag("thead", head), tag("tbody", *body))
    # Focusable, so that it can be scrolled by keyboard.
    return tag(
        "div", whole, class_="scroll", tabindex="0", role="group", aria_label=_plain(caption or "table")
    )


def details(summary: Child, *children: Child) -> Markup:
    """What is shown on request."""
    return tag("details", tag("summary", summary), *children)


def _plain(text: Child) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", str(text)))


def _cell(cell: Child, first: bool) -> Markup:
    return _is_cell(cell) or (tag("th", cell, scope="row") if first else tag("td", cell))


def _is_cell(cell: Child) -> Markup | None:
    return cell if isinstance(cell, Markup) and cell.startswith(("<td", "<th")) else None


def _attribute(key: str, value: object) -> str:
    name = key.rstrip("_").replace("_", "-") if key != "viewBox" else key
    return f' {name}="{escape(value)}"'
