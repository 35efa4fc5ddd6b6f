"""`dist-train`: finds the verb, imports only its module, turns errors into text and exit codes."""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dist_train import __version__
from dist_train.cli.options.verb import Verb, examples
from dist_train.errors import DistTrainError, ExitCode, forget_interrupt
from dist_train.jobs.parent_death_signal import keep_exit_codes
from dist_train.near_names import nearest
from dist_train.prewarm.prewarmed_agent import prewarming

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Verb -> its line of help; dist_train/cli/verbs/VERB.py has its COMMAND. Importing every module would cost
# more than printing --help.
VERBS = {
    "launch": "Run a config, a script or a module on every process of a job.",
    "resume": "Go on with a run from its newest good checkpoint.",
    "status": "Say how a run is doing: its step, loss, failure.",
    "logs": "Print a run's log, by rank and attempt.",
    "events": "Print what happened to a run, also while it happens.",
    "stacks": "Print the Python stacks of a running job's ranks.",
    "profile": "Show where the time of profiled steps went.",
    "report": "Write one HTML file about a run: curves, time, failures, config.",
    "compare": "Show runs beside each other: figures, speed, curves, config.",
    "diff": "Find the first step in which two runs differ.",
    "cancel": "End a run: it saves, stops and stays ended.",
    "list": "List the runs.",
    "checkpoint": "List, verify, show, import and export checkpoints.",
    "predict": "Run a trained model over data, one process per device.",
    "estimate": "Show the memory that each rank will need, by strategy.",
    "doctor": "Check the nodes of a job before it costs a day.",
    "config": "Show, check and describe configs.",
    "env": "Show what this process's environment says of its rank.",
    "devices": "Show the GPUs and who uses them; the cores and memory to be had.",
    "init": "Write a config and a model that run as they are.",
    "drill": "Kill a rank of a short training, and see the same bits come out.",
    "completion": "Print the script that makes a shell complete our words.",
}
# The headings of --help, in the order of a run's life.
GROUPS = {
    "Begin": ("init", "launch", "drill"),
    "A run": ("status", "logs", "events", "stacks", "profile", "list", "cancel", "resume"),
    "Its results": ("report", "compare", "diff", "checkpoint", "predict"),
    "Before a run": ("doctor", "devices", "config", "estimate", "env"),
    "Shell": ("completion",),
}
_ALIASES = {"gpus": "devices"}
_HIDDEN = {"supervise": "Follow a detached local run to its end."}


class Verbs(Verb, click.Group):
    """A group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Verbs in the order of the headings; verbs without a heading last."""
        named = [verb for verbs in GROUPS.values() for verb in verbs if verb in VERBS]
        return [*named, *(verb for verb in VERBS if verb not in named)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb's module; its command is called COMMAND."""
        known = {**VERBS, **_HIDDEN}
        cmd_name = _ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in known:
            return None
        command: click.Command = importlib.import_module(f"dist_train.cli.verbs.{cmd_name}").COMMAND
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; a closed pipe (`logs … | head`) ends it with the exit code of SIGPIPE."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Caught here: click would exit with 1, the code of a failed rank.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 128 + signal.SIGPIPE

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Names and lines from the table: no verb is imported for --help."""
        width = max(len(verb) for verb in VERBS)
        left = self.list_commands(ctx)
        for title, verbs in (*GROUPS.items(), ("Others", tuple(left))):
            rows = [(f"{verb:<{width}}", VERBS[verb]) for verb in verbs if verb in left]
            left = [verb for verb in left if verb not in verbs]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Verbs from the table: completing one imports none."""
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        fitting = [verb for verb in self.list_commands(ctx) if verb.startswith(incomplete)]
        return [CompletionItem(verb, help=VERBS[verb]) for verb in fitting]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does, with the nearest verb in the error; an incomplete line is no error."""
        if (
            not ctx.resilient_parsing
            and args
            and self.get_command(ctx, args[0]) is None
            and not args[0].startswith("-")
        ):
            near = nearest(args[0], [*VERBS, *_ALIASES])
            hint = f" Did you mean {near!r}?" if near else f" There are: {', '.join(VERBS)}."
            raise click.UsageError(f"no verb is called {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    subcommand_metavar="VERB [WORDS]...   (VERB --help explains it)",
    epilog=examples(
        "dist-train launch --nodes 2 --gpus-per-node 2  # the bundled digits",
        "dist-train launch --gpus-per-node 2 train.py --lr 0.1  # your script",
        "dist-train status  # of the newest run",
    ),
)
@click.version_option(__version__, prog_name="dist-train")
def cli() -> None:
    """Distributed PyTorch training: the same job everywhere, and never silently wrong."""


def main(argv: list[str] | None = None) -> None:
    """The console script; ends the process with the documented exit code."""
    _open_closed_streams()
    keep_exit_codes()
    try:
        with prewarming(sys.argv[1:] if argv is None else argv):
            code = run(argv)
    except KeyboardInterrupt:  # before or after the verb
        code = int(ExitCode.INTERRUPTED)
    forget_interrupt()
    sys.exit(code)


def _open_closed_streams() -> None:
    """Open /dev/null for closed streams (`>&-`): else the next file or socket would become stdout."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            os.set_inheritable(opened, True)


def run(argv: list[str] | None = None) -> int:
    """Run one command; return its exit code."""
    try:
        result: Any = cli.main(args=argv, prog_name="dist-train", standalone_mode=False)
        if sys.stdout is not None:  # closed: `>&-`
            sys.stdout.flush()
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
            return _own_fault()
        click.echo(f"error: {error}", err=True)
        return int(error.exit_code)
    except PermissionError as error:
        return _denied(error)
    except FileNotFoundError:
        return _no_file()
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            return _own_fault()
        return _full_disk()
    except Exception:
        return _own_fault()


def _own_fault() -> int:
    import traceback

    traceback.print_exc()
    click.echo("dist-train itself has failed; please report it with the lines above", err=True)
    return int(ExitCode.INTERNAL)


def _no_file() -> int:
    """Verbs that look at relative paths meet a current folder that has been deleted."""
    from dist_train.cli.options.working_folder import refuse_missing_folder

    try:
        refuse_missing_folder()
    except DistTrainError as error:
        click.echo(f"error: {error}", err=True)
        return int(error.exit_code)
    return _own_fault()


def _denied(error: PermissionError) -> int:
    """A file that this user may not read or write, most likely of another user's run."""
    from dist_train.cli.run.run_owner import denied

    if not isinstance(error.filename, (str, os.PathLike)):
        return _own_fault()
    refused = denied(Path(error.filename))
    click.echo(f"error: {refused}", err=True)
    return int(refused.exit_code)


def _full_disk() -> int:
    """The error of a write has no file name: it is stdout, or else a file of the run."""
    what, hint = "a file", "`df -h .` shows the room there is; --run-dir names another place"
    try:
        click.echo()  # the failed text may not be buffered any more: a flush alone would succeed
    except OSError:
        what, hint = "what this command says", "`df -h` shows which disk it goes to"
        # The buffered rest would fail again when the interpreter exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    click.echo(f"error: {what} could not be written: No space left on device\n  hint:  {hint}", err=True)
    return int(ExitCode.CHECKPOINT_WRITE)


if __name__ == "__main__":
    main()
