"""Configs for the tests of estimates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dist_train.config import load_config
from dist_train.config.schema import RunConfig

EXAMPLES = Path(__file__).parents[3] / "examples"


def config_of(example: str = "digits", **sections: Any) -> RunConfig:
    """An example's config with other sections."""
    config = load_config(EXAMPLES / f"{example}.yaml").config
    changed = {**config.model_dump(exclude_none=True), **sections}
    return RunConfig.model_validate(changed)
