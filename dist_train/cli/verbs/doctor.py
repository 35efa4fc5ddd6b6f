"""`dist-train doctor`: a short job on the nodes that a launch would get, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from dist_train.cli.launch.arguments import LaunchArguments, asks_for_help, parse
from dist_train.cli.launch.doctor_job import MODULE, facts_of, job_options, launch_job, launch_words
from dist_train.cli.launch.launch_options import LaunchCommand, OptionGroup
from dist_train.cli.options.shell_complete import runs
from dist_train.cli.options.verb import examples
from dist_train.cli.options.working_folder import refuse_missing_folder
from dist_train.cli.output.json_output import print_json
from dist_train.cli.output.table import render_table
from dist_train.cli.run.find_run import open_run, short_name_of
from dist_train.cli.run.job_state import is_active, is_unknown, query_state
from dist_train.errors import ExitCode, NotFoundError, UnavailableError, UsageError
from dist_train.rundir import RunDir
from dist_train.rundir.records import write_json_atomic

if TYPE_CHECKING:
    from dist_train.doctor.facts import Facts
    from dist_train.doctor.finding import Finding

_HEADS = ("", "CHECK", "NODES", "FOUND")
_HELP = """Check the nodes that a launch with these options would get: versions, GPUs, network, disks, limits.

A short job, launched as any other, gathers facts on each node, measures clocks, files and links between
them, and runs an all-reduce. Each finding has its cause and a hint. Ends with 0 if a launch would work, with
78 if not."""
_EXAMPLES = examples(
    "dist-train doctor  # this machine",
    "dist-train doctor --launcher slurm -p gpu --nodes 16 --gpus-per-node 8",
    "dist-train doctor --launcher kubernetes --image IMAGE --run-volume pvc/runs --nodes 2",
    "dist-train doctor --of @last  # of a job that was left in the queue",
)


class _Doctor(LaunchCommand):
    """Parses as `launch` does, whose options it has; there is no target."""

    def invoke(self, ctx: click.Context) -> int:
        if asks_for_help(self, ctx.args):
            click.echo(self.get_help(ctx))
            return 0
        return doctor(ctx.args)


def make_command() -> _Doctor:
    """The command with every launcher's own options."""
    own = [
        click.Option(["--json", "as_json"], is_flag=True, default=False, help="One JSON object."),
        click.Option(
            ["--of"],
            multiple=True,
            metavar="RUN",
            shell_complete=runs,
            help="Launch nothing: the findings of a doctor's job that has ended.",
        ),
    ]
    groups = [OptionGroup("Findings", own), *job_options()]
    unique = {option.name: option for group in groups for option in group.options}
    command = _Doctor(
        "doctor",
        params=list(unique.values()),
        help=_HELP,
        epilog=_EXAMPLES,
        options_metavar="[OPTIONS]",
    )
    command.groups = groups
    return command


def doctor(argv: Sequence[str]) -> int:
    """Launch the job, or look for that of --of; print the findings, return 0 or 78."""
    refuse_missing_folder()
    command = make_command()
    arguments = parse(command, argv)
    _refuse_target(arguments)
    options = dict(arguments.options)
    as_json, of = bool(options.pop("as_json", False)), options.pop("of", None)
    if of is not None:
        if options:
            raise UsageError(
                f"--of {of} launches nothing, and {arguments.typed[min(options)]} is of a launch",
                hint="give one of them",
            )
        return _report_of(str(of), as_json)
    words, folder = launch_words(options, command.groups)
    code, lines = launch_job(words)
    if options.get("dry_run"):
        click.echo("".join(lines), nl=False)
        return code
    run = RunDir(folder)
    goes_on = options.get("launcher", "local") != "local"
    if code == ExitCode.INTERRUPTED and run.is_run and goes_on:
        click.echo(f"[dist-train] once it has ended: dist-train doctor --of {short_name_of(run)}", err=True)
    if not run.is_run or code in (ExitCode.CANCELLED, ExitCode.INTERRUPTED):
        return code
    return _report(run, code, lines, as_json)


def _refuse_target(arguments: LaunchArguments) -> None:
    word = arguments.target or arguments.module
    if word is not None:
        raise UsageError(
            f"doctor takes no target: {word!r}",
            cause="it launches a job of its own",
            hint="--of RUN shows the findings of an earlier one",
        )


def _report_of(name: str, as_json: bool) -> int:
    opened = open_run(name)
    if (opened.spec.target.kind, opened.spec.target.value) != ("module", MODULE):
        raise NotFoundError(
            f"{opened.short_name} is no job of `dist-train doctor`",
            hint="dist-train list --name 'doctor-*'",
        )
    state = query_state(opened)
    if is_active(opened, state) or is_unknown(state):
        raise UnavailableError(
            f"{opened.short_name} has not ended: {state.phase}",
            cause=state.detail or None,
            hint=f"dist-train logs -f {opened.short_name}",
        )
    try:
        lines = list(opened.launcher.logs(opened.handle, opened.run_dir, 0, None, False))
    except NotFoundError:  # no rank has started
        lines = []
    return _report(opened.run, state.exit_code, lines, as_json)


def _report(run: RunDir, code: int | None, lines: Iterable[str], as_json: bool) -> int:
    from dist_train.doctor.examine import examine
    from dist_train.doctor.findings_report import report_record, would_launch

    facts = facts_of(run, code, lines)
    if facts is None:
        raise NotFoundError(
            f"there are no facts in the log of {short_name_of(run)}",
            cause="it has ended without a word of its ranks, or the log is not all there",
            hint="dist-train doctor",
        )
    findings = examine(facts)
    record = report_record(facts, findings)
    try:
        run.doctor.mkdir(mode=0o700, exist_ok=True)
        write_json_atomic(run.doctor / "report.json", record)
    except OSError as error:  # a full disk, or another user's run; the findings are printed all the same
        click.echo(f"[dist-train] report.json could not be written: {error}", err=True)
    if as_json:
        print_json({"run_dir": run.path, **record})
    else:
        click.echo("\n".join(_text(facts, findings)))
    return int(ExitCode.OK if would_launch(findings) else ExitCode.CONFIG)


def _text(facts: Facts, findings: Sequence[Finding]) -> Iterable[str]:
    from dist_train.doctor.findings_report import counts, explanations, table_rows, would_launch

    yield render_table(_HEADS, table_rows(findings))
    for title, cause, hint in explanations(findings):
        yield f"\n{title}"
        yield f"  cause: {cause}"
        if hint:
            yield f"  hint:  {hint}"
    found = ", ".join(f"{count} {severity}" for severity, count in counts(findings).items() if count)
    job = facts.job
    verdict = "a launch would work" if would_launch(findings) else "a launch would NOT work"
    yield f"\n{verdict} on {job.nodes} node(s) x {job.procs} processes, {job.device}: {found}"


COMMAND = make_command()
