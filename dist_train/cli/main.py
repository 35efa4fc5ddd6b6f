"""`dist-train`: finds the verb, imports only its module, turns errors into text and exit codes."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Any

import click

from dist_train import __version__
from dist_train.errors import DistTrainError, ExitCode

# verb -> (module, one line of help). Importing them all would cost more than printing --help.
VERBS = {
    "launch": ("dist_train.cli.launch", "Run a config, a script or a module on every process of a job."),
    "resume": ("dist_train.cli.resume", "Go on with a run from its newest good checkpoint."),
    "status": ("dist_train.cli.status", "Say where a run is, and who answered."),
    "logs": ("dist_train.cli.logs", "Print a run's log, by rank and attempt."),
    "cancel": ("dist_train.cli.cancel", "End a run: it saves, stops and stays ended."),
    "list": ("dist_train.cli.list", "List the runs."),
    "checkpoint": ("dist_train.cli.checkpoint", "List, verify and show checkpoints."),
    "config": ("dist_train.cli.config", "Show, check and describe configs."),
    "env": ("dist_train.cli.env", "Show what this process's environment says of its rank."),
}
_HIDDEN = {"supervise": ("dist_train.cli.supervise", "Follow a detached local run to its end.")}


class Verbs(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Verbs in the order in which a person meets them."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb's module; its command is called COMMAND."""
        known = {**VERBS, **_HIDDEN}
        if cmd_name not in known:
            return None
        command: click.Command = importlib.import_module(known[cmd_name][0]).COMMAND
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; a reader that has had enough (`logs … | head`) ends it as the signal would."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Caught here: click itself would make it a plain 1, the code of a failed rank.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 128 + signal.SIGPIPE

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Names and lines from the table: no verb is imported for --help."""
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, text) for verb, (_, text) in VERBS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, with the nearest verb named."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], VERBS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" There are: {', '.join(VERBS)}."
            raise click.UsageError(f"no verb is called {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dist-train")
def cli() -> None:
    """Distributed PyTorch training: the same job everywhere, and never silently wrong.

    \b
    dist-train launch examples/digits.yaml --nodes 2 --gpus-per-node 4
    dist-train launch --gpus-per-node 2 train.py --lr 0.1    (words after the script are the script's)
    """


def main(argv: list[str] | None = None) -> None:
    """The console script; ends the process with the documented exit code."""
    sys.exit(run(argv))


def run(argv: list[str] | None = None) -> int:
    """One command; returns its exit code."""
    try:
        result: Any = cli.main(args=argv, prog_name="dist-train", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.ClickException as error:
        error.show()
        return int(ExitCode.USAGE)
    except (click.exceptions.Abort, KeyboardInterrupt):
        return int(ExitCode.INTERRUPTED)
    except DistTrainError as error:
        if error.exit_code == ExitCode.INTERNAL:
            raise
        click.echo(f"error: {error}", err=True)
        return int(error.exit_code)


if __name__ == "__main__":
    main()
