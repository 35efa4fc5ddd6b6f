"""Options of the local launcher: it has none."""

from __future__ import annotations

from dist_train.jobs.launcher import OptionRow

OPTION_ROWS: dict[str, OptionRow] = {}
