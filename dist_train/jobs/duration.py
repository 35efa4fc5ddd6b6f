"""Time limits in sbatch's forms: MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS."""

from __future__ import annotations

import re

from dist_train.errors import ConfigError

_WITH_DAYS = re.compile(r"(\d+)-(\d+)(?::(\d+))?(?::(\d+))?")
_WITHOUT = re.compile(r"(?:(\d+):)?(\d+):(\d+)|(\d+)")


def seconds(text: str) -> int:
    """Seconds of a time limit; raises ConfigError with the forms."""
    if match := _WITH_DAYS.fullmatch(text.strip()):
        days, hours, minutes, rest = (int(part or 0) for part in match.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + rest
    if match := _WITHOUT.fullmatch(text.strip()):
        if match[4] is not None:
            return int(match[4]) * 60
        return (int(match[1] or 0) * 60 + int(match[2])) * 60 + int(match[3])
    raise ConfigError(
        f"the time limit {text!r} is not a time",
        hint="write MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS (as sbatch --time)",
    )
