"""The words of `launch`: our options, TARGET, and what belongs to the script or the config.

Before TARGET every option is ours. After a script or module every word is the script's. After a
config our options and `a.b=c` overrides come in any order: those words are parsed once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from dist_train import registry
from dist_train.cli.candidates import folders
from dist_train.cli.legacy import CHOICES
from dist_train.cli.live import mode
from dist_train.cli.values import Count, OneOf
from dist_train.cli.verb import Verb
from dist_train.errors import UsageError

_YAML = (".yaml", ".yml")


@dataclass(frozen=True)
class Words:
    """What was typed: option name -> value as text (flags: True), and the rest in its places."""

    options: dict[str, Any]
    typed: dict[str, str]
    target: str | None = None
    module: str | None = None
    args: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class OptionGroup:
    """Options under one heading of --help; `launchers` None means that every launcher has them."""

    title: str
    options: list[click.Option]
    launchers: frozenset[str] | None = field(default=None)


def _value(
    *names: str, help: str, metavar: str | None = None, type: Any = str, **settings: Any
) -> click.Option:
    shown = metavar or _metavar(names, type)
    # multiple: so that the same thing given twice can be compared instead of the last one winning
    return click.Option(names, multiple=True, help=help, metavar=shown, type=type, **settings)


def _metavar(names: tuple[str, ...], type: Any) -> str | None:
    """The option's own name for a word; else what its type calls itself."""
    flags = [name for name in names if name.startswith("--")]
    return flags[0][2:].upper() if type is str and flags else None


def _flag(*names: str, help: str) -> click.Option:
    return click.Option(names, is_flag=True, default=False, help=help)


def option_groups() -> list[OptionGroup]:
    """Common options, then each launcher's own, made from its options model."""
    where = [
        _value(
            "--launcher",
            help="Where to run.  [default: local]",
            type=OneOf(registry.names("launchers")),
        ),
        _value("-J", "--name", help="The run's name.  [default: TARGET's stem and the first free number]"),
        _value(
            "--run-dir",
            help="The run's directory.  [default: runs/NAME]",
            metavar="DIR",
            shell_complete=folders,
        ),
        _value("-m", "module", help="Run a module, as `python -m` does.", metavar="MODULE"),
    ]
    size = [
        _value("-N", "--nodes", "--nnodes", help="Number of nodes.  [default: 1]", type=Count(1)),
        _value(
            "--gpus-per-node",
            "--nproc-per-node",
            help="Processes per node.  [default: all visible GPUs, or 1 on CPU]",
            type=Count(1),
            metavar="G",
        ),
        _value(
            "--gpus", help="Which GPUs of this machine: 0,3 or auto (least used first).", metavar="0,3|auto"
        ),
        _value(
            "--device",
            help="auto: CPU where this machine has no GPU.  [default: auto]",
            type=OneOf(["auto", "cpu", "cuda"]),
        ),
        _value("-t", "--time", help="Time limit: MM, HH:MM:SS or D-HH:MM:SS.", metavar="TIME"),
        _value("--mem", help="Memory per node.", metavar="64G"),
        _value("--cpus-per-gpu", help="CPU cores per process.", type=Count(1)),
        _value("--cpus-per-task", help="", hidden=True),
    ]
    run = [
        _value("--init-method", help="torch's init_method for the ranks.  [default: env://]", metavar="URL"),
        _value("--env", help="A variable for every rank; no secrets.", metavar="K=V"),
        _value(
            "--secret", help="A variable whose value stays in the environment, in no file.", metavar="NAME"
        ),
        _value("--interface", help="Network interface or CIDR between the nodes.", metavar="NAME"),
        _value("--progress", help=mode.HELP, type=OneOf(mode.CHOICES)),
        _value("--show-ranks", help="Whose stdout to show: 0, all, or 0,3.  [default: 0]", metavar="RANKS"),
        _value(
            "--legacy-local-rank",
            help="Hand each rank --local_rank (underscore) or --local-rank (dash), as "
            "torch.distributed.launch did.  [default: auto, where the script declares it]",
            type=OneOf(CHOICES),
        ),
        _value("--run-id", help="", hidden=True),
        _flag("--dry-run", help="Print the plan and submit nothing."),
        _flag("--detach", help="Return at once with the job's handle."),
    ]
    failures = [
        _value("--max-restarts", help="Over the whole run.  [default: 3]", type=Count(0)),
        _value(
            "--restart-on",
            help="crash: not after an exception of your code.  [default: crash]",
            type=OneOf(["crash", "any"]),
        ),
        _flag("--accept-code-change", help="Go on although the code is not that of the last attempt."),
    ]
    groups = [OptionGroup("Where", where), OptionGroup("Size", size), OptionGroup("Run", run)]
    return [*groups, OptionGroup("Failures", failures), *_adapter_groups()]


def _adapter_groups() -> list[OptionGroup]:
    groups: list[OptionGroup] = []
    for name in registry.names("launchers"):
        launcher: Any = registry.load("launchers", name)
        fields = launcher.Options.model_fields
        options = []
        for field_name, info in fields.items():
            extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
            flags = extra.get("flags", ["--" + field_name.replace("_", "-")])
            if not isinstance(flags, list):
                continue  # flags=False: for config files only
            option = _value(
                *[str(flag) for flag in flags],
                field_name,
                help=info.description or "",
                metavar=str(extra["metavar"]) if "metavar" in extra else None,
            )
            options.append(option)
        if options:
            title = f"{name.capitalize()} (with --launcher {name})"
            groups.append(OptionGroup(title, options, frozenset({name})))
    # The long ones last: what stands before them is read.
    return sorted(groups, key=lambda group: len(group.options))


class LaunchCommand(Verb):
    """Groups its options in --help, and takes both `-` and `_` spellings."""

    groups: list[OptionGroup]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One section per group."""
        for group in self.groups:
            rows = [record for option in group.options if (record := option.get_help_record(ctx)) is not None]
            with formatter.section(group.title):
                formatter.write_dl(rows)


def normalize(token: str) -> str:
    """`--run_dir` is `--run-dir`; click hands over an option's name without its dashes."""
    return token.replace("_", "-")


def parse(command: click.Command, argv: Sequence[str]) -> Words:
    """Split the words after `launch`; raises UsageError (2)."""
    if (at := _module_at(command, argv)) is not None:
        first, _ = _parse_options(command, argv[:at], interspersed=False)
        module, *args = _module_words(argv[at:])
        return Words(_collapse(first), _typed(first), module=module, args=tuple(args))
    first, rest = _parse_options(command, argv, interspersed=False)
    if not rest:
        return Words(_collapse(first), _typed(first))
    target, *words = rest
    if not target.endswith(_YAML):
        if "=" in target and not target.endswith(".py"):
            raise UsageError(
                f"{target!r} is not a target: overrides stand after the config",
                mend="dist-train launch CONFIG.yaml a.b=c",
            )
        return Words(_collapse(first), _typed(first), target=target, args=tuple(words))
    second, leftover = _parse_options(command, words, interspersed=True)
    strange = [word for word in leftover if "=" not in word]
    if strange:
        raise UsageError(
            f"{strange[0]!r} after {target} is neither an option nor an override",
            mend="overrides look like trainer.epochs=3; `dist-train launch --help` lists the options",
        )
    merged = {name: [*first.get(name, []), *second.get(name, [])] for name in {*first, *second}}
    return Words(_collapse(merged), _typed(merged), target=target, overrides=tuple(leftover))


def asks_for_help(command: click.Command, argv: Sequence[str]) -> bool:
    """--help before TARGET, or after a config; after a script or module it is theirs."""
    if not (places := [at for at, word in enumerate(argv) if word in ("-h", "--help")]):
        return False
    before = argv[: places[0]]
    if _module_at(command, argv) in range(places[0]):
        return False
    try:
        _, rest = _parse_options(command, before, interspersed=False)
    except click.UsageError:
        return True  # whatever is wrong before it: help is the answer
    return not rest or rest[0].endswith(_YAML)


def target_of(command: click.Command, argv: Sequence[str]) -> str | None:
    """TARGET among words that may be unfinished; `-m` for a module; None where there is none yet."""
    if _module_at(command, argv) is not None:
        return "-m"
    try:
        _, rest = _parse_options(command, argv, interspersed=False)
    except click.UsageError:
        return None
    return rest[0] if rest else None


def _module_at(command: click.Command, argv: Sequence[str]) -> int | None:
    """Where `-m` stands as our option: all after its MODULE is the module's, as after `python -m`."""
    for at, word in enumerate(argv):
        if not word.startswith("-m"):
            continue
        try:
            _, rest = _parse_options(command, argv[:at], interspersed=False)
        except click.BadOptionUsage:
            continue  # the word before wants a value, and this is it
        return None if rest else at
    return None


def _module_words(words: Sequence[str]) -> list[str]:
    first, *rest = words
    found = [first[2:], *rest] if len(first) > 2 else rest
    if not found:
        raise UsageError("-m stands without a module", mend="dist-train launch -m my_package.train")
    return found


def _parse_options(
    command: click.Command, argv: Sequence[str], interspersed: bool
) -> tuple[dict[str, list[Any]], list[str]]:
    context = click.Context(command, info_name="dist-train launch", token_normalize_func=normalize)
    context.allow_interspersed_args = interspersed
    parser = command.make_parser(context)
    try:
        parsed, leftover, _ = parser.parse_args(args=list(argv))
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


# Options that are a list by nature.
_REPEATABLE = (
    *("env", "sbatch_arg", "secret", "setup"),
    *("annotation", "node_selector", "resource", "secret_ref", "toleration"),
)


def _collapse(values: dict[str, list[Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, given in values.items():
        if name == "module" or not given:
            continue
        out[name] = tuple(given) if name in _REPEATABLE else _single(values, name)
    return out


def _single(values: dict[str, list[Any]], name: str) -> Any:
    given = values.get(name, [])
    if len(set(map(str, given))) > 1:
        flag = "--" + name.replace("_", "-")
        raise UsageError(f"{flag} is given twice: {given[0]} and {given[-1]}", mend="give it once")
    return given[0] if given else None


def _typed(values: dict[str, list[Any]]) -> dict[str, str]:
    return {
        name: f"--{name.replace('_', '-')}" + ("" if given[0] is True else f" {given[0]}")
        for name, given in values.items()
        if given
    }
