"""The options of `launch` and the groups of its --help; each launcher's own come from its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import click

from dist_train import registry
from dist_train.cli.launch.local_rank_flag import CHOICES
from dist_train.cli.live import display_mode
from dist_train.cli.options.param_types import MOST_NODES, MOST_PROCESSES_PER_NODE, Count, DeviceName, OneOf
from dist_train.cli.options.shell_complete import folders
from dist_train.cli.options.verb import Verb
from dist_train.errors import ConfigError
from dist_train.jobs.launcher import OptionRow, load_launcher, rows_of_model
from dist_train.profiling.profiled_steps import DEFAULT


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
    # multiple: an option given twice is an error, instead of the last value winning
    return click.Option(names, multiple=True, help=help, metavar=shown, type=type, **settings)


def _metavar(names: tuple[str, ...], type: Any) -> str | None:
    """The option's name in capitals for a text; else the type's own."""
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
        _value("-N", "--nodes", "--nnodes", help="Number of nodes.  [default: 1]", type=Count(1, MOST_NODES)),
        _value(
            "--gpus-per-node",
            "--nproc-per-node",
            help="Processes per node.  [default: all visible GPUs, or 1 on CPU]",
            type=Count(1, MOST_PROCESSES_PER_NODE),
            metavar="G",
        ),
        _value(
            "--gpus", help="Which GPUs of this machine: 0,3 or auto (least used first).", metavar="0,3|auto"
        ),
        _value(
            "--device",
            help="auto: cuda; here without a cluster, CPU if this machine has no GPU.  [default: auto]",
            type=DeviceName(["auto", "cpu", "cuda"]),
        ),
        _value("-t", "--time", help="Time limit: MM, HH:MM:SS or D-HH:MM:SS.", metavar="TIME"),
        _value("--mem", help="Memory per node.", metavar="64G"),
        _value("--cpus-per-gpu", help="CPU cores per process.", type=Count(1)),
        _value(
            "--bind",
            help="Bind ranks to cores: cores of their own, those of their NUMA node, or lists of CPUs "
            "by local rank, 0-3,8/4-7.  [default: none]",
            metavar="none|cores|numa|CPUS",
        ),
        _value("--cpus-per-task", help="", hidden=True),
    ]
    run = [
        _value("--init-method", help="torch's init_method for the ranks.  [default: env://]", metavar="URL"),
        _value("--env", help="A variable for every rank; no secrets.", metavar="K=V"),
        _value(
            "--secret", help="A variable whose value stays in the environment, in no file.", metavar="NAME"
        ),
        _value("--interface", help="Network interface or CIDR between the nodes.", metavar="NAME"),
        _value("--progress", help=display_mode.HELP, type=OneOf(display_mode.CHOICES)),
        _value("--show-ranks", help="Whose stdout to show: 0, all, or 0,3.  [default: 0]", metavar="RANKS"),
        _value(
            "--log-limit",
            help="Size of each rank's log; of a longer one the begin and the end are kept.  [default: 4G]",
            metavar="4G",
        ),
        _value(
            "--profile",
            help="Profile these optimizer steps, counted from each attempt's start, with torch's profiler; "
            f"`dist-train profile` shows what came out.  [default: none; without STEPS: {DEFAULT}]",
            metavar="[FIRST:LAST]",
        ),
        _value(
            "--profile-ranks", help="Which ranks are profiled: 0, all, or 0,3.  [default: 0]", metavar="RANKS"
        ),
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
        try:
            rows = _rows(name)
        except ConfigError:
            continue  # raised again where it is chosen
        options = [
            _value(
                *(row.flags or ("--" + field_name.replace("_", "-"),)),
                field_name,
                help=row.help,
                metavar=row.metavar or None,
            )
            for field_name, row in rows.items()
        ]
        if options:
            title = f"{name.capitalize()} (with --launcher {name})"
            groups.append(OptionGroup(title, options, frozenset({name})))
    # Long groups last: readers get to the short ones.
    return sorted(groups, key=lambda group: len(group.options))


def _rows(launcher: str) -> Mapping[str, OptionRow]:
    """The launcher's own options: from its table where it has one, else from its options model."""
    table = registry.companion("launchers", launcher, "option_rows")
    if table is not None:
        rows: Mapping[str, OptionRow] = table.OPTION_ROWS
        return rows
    return rows_of_model(load_launcher(launcher).Options)


class LaunchCommand(Verb):
    """Groups its options in --help, and takes both `-` and `_` spellings.

    Its words are parsed by cli/launch/arguments.py: click's parsing ends where a script's arguments begin.
    """

    groups: list[OptionGroup]

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Keep all words, for `invoke` to parse."""
        context = click.Context(self, info_name=info_name, parent=parent, **extra)
        context.args = list(args)
        return context

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One section per group."""
        for group in self.groups:
            rows = [record for option in group.options if (record := option.get_help_record(ctx)) is not None]
            with formatter.section(group.title):
                formatter.write_dl(rows)
