"""For all tests: leak check, report of skips, one example database for hypothesis."""

from __future__ import annotations

from pathlib import Path

from hypothesis import configuration

pytest_plugins = ["dist_train.testing.plugin"]

# Every test runs in its own directory; without this each would get an example database there.
configuration.set_hypothesis_home_dir(Path(__file__).resolve().parent.parent / ".hypothesis")
