"""Time limits in sbatch's six forms."""

from __future__ import annotations

import pytest

from dist_train.errors import ConfigError
from dist_train.jobs.duration import seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 90 * 60),
        ("1:30", 90),
        ("4:00:00", 4 * 3600),
        ("100:00:00", 360_000),
        ("2-12", (2 * 24 + 12) * 3600),
        ("1-2:30", (26 * 60 + 30) * 60),
        ("1-0:00:01", 86_401),
        (" 5 ", 300),
    ],
)
def test_forms(text: str, expected: int) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "1h", "-5", "1:2:3:4", "1.5", "1-", "4:"])
def test_other_texts_are_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a time") as caught:
        seconds(text)
    assert "D-HH:MM:SS" in str(caught.value)
