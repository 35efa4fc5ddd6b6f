"""Validators of Kubernetes' syntax: names, labels, images, tolerations, lists of NAME=VALUE."""

from __future__ import annotations

import re
from collections.abc import Mapping

_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL)
_DNS_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*")
_QUALIFIED = re.compile(
    rf"(?:(?=[^/]{{1,253}}/){_LABEL}(?:\.{_LABEL})*/)?[A-Za-z0-9](?:[A-Za-z0-9._-]{{0,61}}[A-Za-z0-9])?"
)
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_PATH_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
# The first part is a host only if it has a dot or a port.
_HOST_PART = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = rf"(?:{_HOST_PART}(?:\.{_HOST_PART})+(?::\d+)?|{_HOST_PART}:\d+|\[[0-9A-Fa-f:]+\](?::\d+)?)"
_IMAGE = re.compile(
    rf"(?:{_HOST}/)?{_PATH_PART}(?:/{_PATH_PART})*"
    r"(?P<tag>:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?P<digest>@sha256:[0-9a-f]{64})?"
)
_TOLERATION = re.compile(
    r"(?P<key>[^=:]+)(?:=(?P<value>[^:]*))?(?::(?P<effect>NoSchedule|PreferNoSchedule|NoExecute))?"
)


def dns_label(text: str) -> str:
    """Check the name of a namespace or a local queue; raises ValueError."""
    if _DNS_LABEL.fullmatch(text) is None:
        raise ValueError(
            f"{text!r} is no name in Kubernetes: lower-case letters, digits and dashes, at most 63"
        )
    return text


def dns_name(text: str) -> str:
    """Check the name of an object: labels separated by dots; raises ValueError."""
    if _DNS_NAME.fullmatch(text) is None:
        raise ValueError(
            f"{text!r} is no name in Kubernetes: lower-case letters, digits, dashes and dots, at most 253"
        )
    return text


def label_key(text: str) -> str:
    """Check the key of a label, an annotation, a taint or a resource: [domain/]name; raises ValueError."""
    if _QUALIFIED.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not of the form name or domain/name")
    return text


def label_value(text: str) -> str:
    """Check the value of a label; raises ValueError."""
    if _LABEL_VALUE.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no value of a label: letters, digits, dashes, dots, _, at most 63")
    return text


def image(text: str) -> str:
    """Check an image reference; raises ValueError with the reason."""
    if _IMAGE.fullmatch(text):
        return text
    if "://" in text:
        raise ValueError(f"{text!r} has a scheme; an image is registry/name:tag")
    if _IMAGE.fullmatch(text.lower()):
        raise ValueError(f"{text!r} has capitals; the names of images are lower case")
    raise ValueError(f"{text!r} is no image: registry/name:tag or registry/name@sha256:…")


def is_pinned(text: str) -> bool:
    """Whether an image has a digest, or a tag other than latest."""
    found = _IMAGE.fullmatch(text)
    return found is not None and (bool(found["digest"]) or found["tag"] not in (None, ":latest"))


def toleration(text: str) -> dict[str, str]:
    """Convert KEY[=VALUE][:EFFECT] to a toleration; raises ValueError."""
    if (found := _TOLERATION.fullmatch(text)) is None:
        raise ValueError(
            f"{text!r} is not of the form KEY[=VALUE][:EFFECT]; "
            "effects are NoSchedule, PreferNoSchedule and NoExecute"
        )
    made = {"key": label_key(found["key"]), "operator": "Exists"}
    if found["value"] is not None:
        made |= {"operator": "Equal", "value": label_value(found["value"])}
    if found["effect"] is not None:
        made["effect"] = found["effect"]
    return made


def as_pairs(value: object) -> object:
    """Convert a mapping of a config file to the NAME=VALUE list of the command line."""
    if isinstance(value, Mapping):
        return tuple(f"{name}={_text(part)}" for name, part in value.items())
    return (value,) if isinstance(value, str) else value


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def pairs(texts: tuple[str, ...]) -> dict[str, str]:
    """Parse a list of NAME=VALUE; raises ValueError for another form and for a name given twice."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ValueError(f"{text!r} is not of the form NAME=VALUE")
        if found.setdefault(name, value) != value:
            raise ValueError(f"{name} is given twice: {found[name]} and {value}")
    return found
