"""Rules that hold for every kind of adapter."""

from __future__ import annotations

from pydantic import BaseModel

from dist_train import registry


def check_registered(kind: str, adapter: object) -> str:
    """The adapter has a name, and the registry gives this very adapter for it; returns the name."""
    name = getattr(adapter, "name", None)
    assert isinstance(name, str), f"{adapter!r} has no attribute `name`"
    assert name, f"the name of {adapter!r} is empty"
    found = registry.names(kind)
    assert name in found, f"{name!r} is not among the registry's {kind} {found}: is the constant in its file?"
    assert registry.load(kind, name) is adapter, f"the registry gives another object for {name!r}"
    return name


def check_options(adapter: object) -> type[BaseModel]:
    """`Options` is a pydantic model that is frozen, refuses unknown names, and has only defaults."""
    options = getattr(adapter, "Options", None)
    assert isinstance(options, type), "`Options` is not a class"
    assert issubclass(options, BaseModel), f"{options.__name__} is not a pydantic model"
    config = options.model_config
    assert config.get("extra") == "forbid", f"{options.__name__}: model_config needs extra='forbid'"
    assert config.get("frozen") is True, f"{options.__name__}: model_config needs frozen=True"
    required = [name for name, field in options.model_fields.items() if field.is_required()]
    assert not required, f"{options.__name__}: {required} have no default, but every option must be optional"
    return options
