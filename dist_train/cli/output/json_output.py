"""`--json` of the read verbs: one object with a schema_version; keys are only ever added."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

SCHEMA_VERSION = 1


def print_json(record: Mapping[str, Any]) -> None:
    """Print one object on stdout."""
    whole = {"schema_version": SCHEMA_VERSION, **record}
    click.echo(json.dumps(_plain(whole), indent=2, allow_nan=False))


def _plain(value: Any) -> Any:
    # JSON has no NaN and infinity; as null a diverged loss would look like one that was never measured.
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
