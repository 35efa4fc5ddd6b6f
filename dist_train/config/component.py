"""The parts of a config that name code: a component (any callable), and an adapter with its options."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

_NAME = r"[^\W\d]\w*"
_TARGET = re.compile(rf"{_NAME}(?:\.{_NAME})*(?::{_NAME}(?:\.{_NAME})*)?")


class Section(BaseModel):
    """Base of all sections: frozen, unknown keys refused, no conversion of types ("3" is not 3)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Component(Section):
    """An object of your own code: `package.module:Name` with arguments, or a bare string without."""

    target: str = Field(description="`package.module:Name` of a class or function, or a short name.")
    args: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments for it.")

    @model_validator(mode="before")
    @classmethod
    def _from_bare_string(cls, value: Any) -> Any:
        return {"target": value} if isinstance(value, str) else value

    @field_validator("target")
    @classmethod
    def _well_formed(cls, value: str) -> str:
        if _TARGET.fullmatch(value) is None:
            raise ValueError('expected "package.module:Name" or a short name')
        return value


class AdapterConfig(Section):
    """An adapter of the registry. In YAML: its name, or a mapping of `name` and its options."""

    name: str = Field(description="Name of the adapter.", min_length=1)
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Its options, written beside `name`; the adapter itself checks them.",
    )

    @model_validator(mode="before")
    @classmethod
    def _gather_options(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if not isinstance(value, dict) or not isinstance(value.get("options", {}), dict):
            return value
        extras = {key: item for key, item in value.items() if key not in ("name", "options")}
        known = {key: item for key, item in value.items() if key == "name"}
        return {**known, "options": {**value.get("options", {}), **extras}}

    @field_validator("options")
    @classmethod
    def _no_reserved_names(cls, value: dict[str, Any]) -> dict[str, Any]:
        if clash := {"name", "options"} & set(value):
            raise ValueError(f"an option cannot be called {sorted(clash)[0]}")
        return value


class StrategyConfig(AdapterConfig):
    """Where parameters and gradients live. In YAML: `ddp`, or a mapping of `name` and its options."""

    name: str = Field(default="ddp", description="Name of the strategy.", min_length=1)


class SinkConfig(AdapterConfig):
    """Where records go. In YAML: `tensorboard`, or a mapping of `name` and its options."""

    name: str = Field(description="Name of the sink.", min_length=1)
