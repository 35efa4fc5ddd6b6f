"""Parse the command line of `launch`: our options, TARGET, and the arguments of the script or config.

Before TARGET every option is ours. After a script or module every argument is the script's. After a
config our options and `a.b=c` overrides come in any order: those arguments are parsed once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from dist_train.cli.launch.profile_option import with_steps
from dist_train.cli.options.verb_options import normalize, only_value
from dist_train.errors import UsageError

YAML_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class LaunchArguments:
    """The parsed command line.

    Args:
        options: option name -> value (flags: True).
        typed: option name -> the option as it was typed, for messages.
        args: the script's or module's own.
        overrides: `a.b=c` after a config.
    """

    options: dict[str, Any]
    typed: dict[str, str]
    target: str | None = None
    module: str | None = None
    args: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()


def parse(command: click.Command, argv: Sequence[str]) -> LaunchArguments:
    """Parse the arguments after `launch`; raise UsageError (2)."""
    if (at := _module_at(command, argv)) is not None:
        first, _ = _parse_options(command, argv[:at], interspersed=False)
        module, *args = _module_arguments(argv[at:])
        return LaunchArguments(_collapse(first), _typed(first), module=module, args=tuple(args))
    first, rest = _parse_options(command, argv, interspersed=False)
    if not rest:
        return LaunchArguments(_collapse(first), _typed(first))
    target, *words = rest
    if not target.endswith(YAML_SUFFIXES):
        if "=" in target and not target.endswith(".py"):
            raise UsageError(
                f"{target!r} is not a target: overrides stand after the config",
                hint="dist-train launch CONFIG.yaml a.b=c",
            )
        return LaunchArguments(_collapse(first), _typed(first), target=target, args=tuple(words))
    second, leftover = _parse_options(command, words, interspersed=True)
    unknown = [word for word in leftover if "=" not in word]
    if unknown:
        raise UsageError(
            f"{unknown[0]!r} after {target} is neither an option nor an override",
            hint="overrides look like trainer.epochs=3; `dist-train launch --help` lists the options",
        )
    merged = {name: [*first.get(name, []), *second.get(name, [])] for name in {*first, *second}}
    return LaunchArguments(_collapse(merged), _typed(merged), target=target, overrides=tuple(leftover))


def asks_for_help(command: click.Command, argv: Sequence[str]) -> bool:
    """Whether --help is ours: before TARGET, or after a config; after a script it is the script's."""
    if not (places := [at for at, word in enumerate(argv) if word in ("-h", "--help")]):
        return False
    before = argv[: places[0]]
    if _module_at(command, argv) in range(places[0]):
        return False
    try:
        _, rest = _parse_options(command, before, interspersed=False)
    except click.UsageError:
        return True  # also with a mistake before it
    return not rest or rest[0].endswith(YAML_SUFFIXES)


def target_of(command: click.Command, argv: Sequence[str]) -> str | None:
    """TARGET in a command line that may be incomplete; `-m` for a module; None where there is none yet."""
    if _module_at(command, argv) is not None:
        return "-m"
    try:
        _, rest = _parse_options(command, argv, interspersed=False)
    except click.UsageError:
        return None
    return rest[0] if rest else None


def _module_at(command: click.Command, argv: Sequence[str]) -> int | None:
    """The index of `-m` as our option: all after its MODULE is the module's, as after `python -m`."""
    for at, word in enumerate(argv):
        if not word.startswith("-m"):
            continue
        try:
            _, rest = _parse_options(command, argv[:at], interspersed=False)
        except click.BadOptionUsage:
            continue  # it is the value of the option before it
        return None if rest else at
    return None


def _module_arguments(words: Sequence[str]) -> list[str]:
    first, *rest = words
    found = [first[2:], *rest] if len(first) > 2 else rest
    if not found:
        raise UsageError("-m stands without a module", hint="dist-train launch -m my_package.train")
    return found


def _parse_options(
    command: click.Command, argv: Sequence[str], interspersed: bool
) -> tuple[dict[str, list[Any]], list[str]]:
    context = click.Context(command, info_name=f"dist-train {command.name}", token_normalize_func=normalize)

    def is_ours(before: Sequence[str]) -> bool:
        """Whether an option stands after these words: not a script's own, and no value of another option."""
        try:
            _, rest = _parse_options(command, before, interspersed)
        except click.UsageError:
            return False
        return interspersed or not rest

    context.allow_interspersed_args = interspersed
    parser = command.make_parser(context)
    try:
        parsed, leftover, _ = parser.parse_args(args=with_steps(argv, is_ours))
    except click.UsageError as error:
        error.ctx = error.ctx or context  # an option without its value comes without
        raise
    values: dict[str, list[Any]] = {}
    for option in command.params:
        if not isinstance(option, click.Option) or option.name not in parsed:
            continue
        given = parsed[option.name]
        texts = given if isinstance(given, (list, tuple)) else [given]
        values[option.name] = [option.type.convert(text, option, context) for text in texts]
    return values, leftover


# Options that may be given several times.
_REPEATABLE = (
    *("env", "sbatch_arg", "secret", "setup", "srun_arg"),
    *("annotation", "node_selector", "resource", "secret_ref", "toleration"),
)


def _collapse(values: dict[str, list[Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, given in values.items():
        if name == "module" or not given:
            continue
        out[name] = tuple(given) if name in _REPEATABLE else only_value(name, given)
    return out


def _typed(values: dict[str, list[Any]]) -> dict[str, str]:
    return {
        name: f"--{name.replace('_', '-')}" + ("" if given[0] is True else f" {given[0]}")
        for name, given in values.items()
        if given
    }
