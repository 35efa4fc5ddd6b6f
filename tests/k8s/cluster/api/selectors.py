"""Label and field selectors.

https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
https://kubernetes.io/docs/concepts/overview/working-with-objects/field-selectors/
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from cluster.api.errors import bad_request
from cluster.objects import Manifest

Test = Callable[[Manifest], bool]

_SET = re.compile(r"^(?P<key>\S+)\s+(?P<operator>in|notin)\s*\((?P<values>[^)]*)\)$")
_EQUAL = re.compile(r"^(?P<key>[^=!\s]+)\s*(?P<operator>==|=|!=)\s*(?P<value>\S*)$")
_EXISTS = re.compile(r"^(?P<operator>!?)(?P<key>[A-Za-z0-9./_-]+)$")
# Commas outside the parentheses of `in (a, b)`.
_COMMA = re.compile(r",(?![^(]*\))")


def label_test(selector: str) -> Test:
    """Compile a label selector, `app=x,tier in (a, b),!old`, to a predicate of objects."""
    tests = [_requirement(part.strip()) for part in _COMMA.split(selector) if part.strip()]

    def test(obj: Manifest) -> bool:
        labels = obj["metadata"].get("labels") or {}
        return all(one(labels) for one in tests)

    return test


def _requirement(text: str) -> Callable[[Mapping[str, str]], bool]:
    if found := _SET.match(text):
        key, values = found["key"], {value.strip() for value in found["values"].split(",")}
        if found["operator"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if found := _EQUAL.match(text):
        key, value = found["key"], found["value"]
        if found["operator"] == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if found := _EXISTS.match(text):
        key, wanted = found["key"], not found["operator"]
        return lambda labels: (key in labels) == wanted
    raise bad_request(f'unable to parse requirement: found "{text}"')


def field_test(selector: str) -> Test:
    """Compile `metadata.name=x,status.phase!=Failed`; any path works, a real server supports only some."""
    tests = []
    for part in filter(None, selector.split(",")):
        found = _EQUAL.match(part.strip())
        if found is None:
            raise bad_request(f'invalid selector: "{part}"; can\'t understand it')
        tests.append((found["key"].split("."), found["value"], found["operator"] != "!="))
    return lambda obj: all((_value(obj, path) == value) == wanted for path, value, wanted in tests)


def _value(obj: Any, path: list[str]) -> str:
    for name in path:
        obj = obj.get(name) if isinstance(obj, dict) else None
    return "" if obj is None else str(obj)


def matches(labels: Mapping[str, str] | None, selector: Mapping[str, str]) -> bool:
    """Whether labels match a Service's selector; an empty selector matches nothing."""
    return bool(selector) and all((labels or {}).get(key) == value for key, value in selector.items())
