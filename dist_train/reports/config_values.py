"""A run's config as dotted paths with their values, and where each came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dist_train.rundir import RunDir
from dist_train.rundir.records import read_json

DEFAULT = "default"


@dataclass(frozen=True)
class ConfigValue:
    """One value of a config.

    Args:
        value: as YAML holds it.
        origin: `default`, `override`, `flag --nodes 2`, `train.yaml:12`; empty where the run has no record.
    """

    path: str
    value: Any
    origin: str

    @property
    def text(self) -> str:
        """The value as JSON-like text."""
        import json

        return self.value if isinstance(self.value, str) else json.dumps(self.value, default=str)


def read_config(run: RunDir) -> tuple[ConfigValue, ...]:
    """Every value of the resolved config; none of a script, which has no config of ours.

    Raises:
        OSError, ValueError: config.yaml cannot be read, or is none.
    """
    if not run.config.exists():
        return ()
    import yaml

    from dist_train.config.layers import leaves
    from dist_train.config.problems import dotted

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        content = yaml.load(run.config.read_text(encoding="utf-8"), Loader=loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    if not isinstance(content, dict):
        raise ValueError("it holds no keys")
    origins = _origins(run)
    return tuple(
        ConfigValue(dotted(path), value, origins.get(dotted(path), _parent_origin(dotted(path), origins)))
        for path, value in leaves(content).items()
    )


def _origins(run: RunDir) -> dict[str, str]:
    record = read_json(run.config_origins) or {}
    origins = record.get("origins")
    return {str(path): str(origin) for path, origin in origins.items()} if isinstance(origins, dict) else {}


def _parent_origin(path: str, origins: dict[str, str]) -> str:
    """The short form of a section (`optimizer: adamw`) has the origin of its first part."""
    inner = [origin for name, origin in origins.items() if name.startswith(f"{path}.")]
    return next((origin for origin in inner if origin != DEFAULT), inner[0] if inner else "")
