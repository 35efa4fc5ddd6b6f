"""The options of an adapter against the model that the adapter declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from dist_train.config.problems import did_you_mean, what_is_wrong
from dist_train.errors import ConfigError


class NoOptions(BaseModel):
    """The options of an adapter that declares none."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def check_options(owner: str, adapter: object, options: Mapping[str, Any]) -> BaseModel:
    """The options as the model `adapter.Options`; an adapter without one takes no option.

    Args:
        owner: what it is called in errors: `the sink tensorboard`.

    Raises:
        ConfigError: an unknown option (with the nearest one), or a value that does not fit.
    """
    model: type[BaseModel] = getattr(adapter, "Options", NoOptions)
    try:
        return model(**options)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        known = list(model.model_fields)
        if first["type"] == "extra_forbidden":
            raise ConfigError(
                f"{owner} has no option {name!r}",
                cause=f"it has {', '.join(known) or 'none'}",
                hint=did_you_mean(name, known) if known else None,
            ) from None
        wrong = what_is_wrong(first)
        wrong = wrong[:1].lower() + wrong[1:]
        raise ConfigError(f"option {name}={first['input']!r} of {owner}: {wrong}") from None
