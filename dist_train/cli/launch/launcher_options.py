"""Options that depend on the launcher: its own are validated, another launcher's are refused."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dist_train.cli.launch.arguments import LaunchArguments
from dist_train.cli.launch.launch_options import OptionGroup
from dist_train.errors import UsageError
from dist_train.jobs.launcher import Launcher

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

    from dist_train.config.launch_section import LaunchConfig
    from dist_train.config.problems import Problem


def refuse_foreign_options(arguments: LaunchArguments, groups: list[OptionGroup], launcher: str) -> None:
    """Raise UsageError for an option of a launcher that was not chosen."""
    own = _own_names(groups, launcher)
    for group in groups:
        if group.launchers is None or launcher in group.launchers:
            continue
        for option in group.options:
            if option.name in arguments.options and option.name not in own:
                raise UsageError(
                    f"{arguments.typed[option.name]} is an option of the {min(group.launchers)} launcher",
                    cause=f"this job goes to {launcher}",
                    hint=f"add --launcher {min(group.launchers)}, or drop the option",
                )


def refuse_unsupported_options(arguments: LaunchArguments, launcher: Launcher) -> None:
    """Raise UsageError for a common option that this launcher cannot honour; it is never ignored."""
    for name, why in launcher.refuses.items():
        if name in arguments.options:
            raise UsageError(
                f"{arguments.typed[name]} means nothing to the {launcher.name} launcher",
                cause=why,
                hint="drop it; in a config's launch section it may stay, for the other launchers",
            )


def launcher_options(
    arguments: LaunchArguments,
    groups: list[OptionGroup],
    launch: LaunchConfig,
    launcher: Launcher,
    origins: Mapping[str, str],
) -> BaseModel:
    """The config's section `launch.<launcher>`, and above it the command line's options.

    Args:
        origins: of the config's values, by dotted path.
    """
    own = _own_names(groups, launcher.name)
    typed = {name: value for name, value in arguments.options.items() if name in own}
    # Without the value, which may be a secret by mistake.
    flags = {name: arguments.typed[name].partition(" ")[0].partition("=")[0] for name in typed}
    return validated_options(launcher, {**launcher_section(launch, launcher.name), **typed}, origins, flags)


def launcher_section(launch: LaunchConfig, launcher: str) -> dict[str, Any]:
    """The section of a launcher in a config's launch section; empty where there is none."""
    section = getattr(launch, launcher, None)  # the section's name is the launcher's
    return dict(section) if isinstance(section, Mapping) else {}


def validated_options(
    launcher: Launcher,
    values: Mapping[str, Any],
    origins: Mapping[str, str],
    flags: Mapping[str, str] = MappingProxyType({}),
) -> BaseModel:
    """The launcher's options model; raise ConfigError with every wrong value and where it was set.

    Args:
        flags: the command line's options (`--partition`), by the names of their values.
    """
    from pydantic import ValidationError

    from dist_train.config.problems import raise_problems

    try:
        return launcher.Options.model_validate(values)
    except ValidationError as error:
        problems = [_problem(each, launcher, origins, flags) for each in error.errors()]
        raise_problems(problems, f"options of the {launcher.name} launcher")
        raise


def _problem(
    error: ErrorDetails, launcher: Launcher, origins: Mapping[str, str], flags: Mapping[str, str]
) -> Problem:
    from dist_train.config.problems import Problem, did_you_mean, dotted, what_is_wrong

    name, path = str(error["loc"][0]), dotted(("launch", launcher.name, *error["loc"]))
    # Of a list the whole has an origin, of a mapping each value.
    near = (origin for key, origin in origins.items() if _one_in_the_other(f"{key}.", f"{path}."))
    where = next(near, "")
    if error["type"] == "extra_forbidden":
        hint = did_you_mean(name, launcher.Options.model_fields)
        return Problem(f"unknown key `{path}`", where, hint)
    message = what_is_wrong(error)
    if name in flags:
        return Problem(f"{flags[name]}: {message} (got {_shown(error)})")
    return Problem(f"`{path}`: {message} (got {_shown(error)})", where)


def _one_in_the_other(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def _own_names(groups: list[OptionGroup], launcher: str) -> set[str]:
    own = (group for group in groups if group.launchers is not None and launcher in group.launchers)
    return {str(option.name) for group in own for option in group.options}


def _shown(error: ErrorDetails) -> str:
    """The value that was given; not where it may be a secret by mistake."""
    return "a text that is not shown" if "secret" in str(error["loc"][:1]) else repr(error["input"])
