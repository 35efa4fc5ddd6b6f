"""Elements whose texts are escaped, whoever wrote them."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from dist_train.reports.markup import Markup, escape, table, tag


@pytest.mark.parametrize(
    "text",
    ["<script>alert(1)</script>", "</td><img src=x onerror=alert(1)>", "' onload='x", '" onload="x', "&lt;"],
)
def test_a_text_stays_a_text(text: str) -> None:
    element = ElementTree.fromstring(tag("p", text, title=text))
    assert (element.text, element.attrib, len(element)) == (text, {"title": text}, 0)


def test_what_html_does_not_allow_is_replaced() -> None:
    assert escape("a\x00b\x1b[31m\ud800c") == "a\ufffdb\ufffd[31m\ufffdc"
    assert escape("two\nlines\t") == "two\nlines\t"


def test_elements_are_not_escaped_again() -> None:
    assert tag("p", tag("b", "1 < 2"), " & 3") == "<p><b>1 &lt; 2</b> &amp; 3</p>"
    assert isinstance(tag("br"), Markup)
    assert tag("meta", charset="utf-8", name=None) == '<meta charset="utf-8"/>'


def test_a_table_heads_its_rows_and_columns() -> None:
    element = ElementTree.fromstring(table(("a", "b"), [("1", "<2>")], caption="x & y"))
    assert [cell.text for cell in element.iter("th")] == ["a", "b", "1"]
    assert [cell.text for cell in element.iter("td")] == ["<2>"]
    assert element.attrib["aria-label"] == "x & y"
