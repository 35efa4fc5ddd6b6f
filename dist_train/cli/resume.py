"""`dist-train resume`: go on with a run from its newest good checkpoint, in its own directory."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from dist_train.cli.launch import finish_submission, write_plan
from dist_train.cli.live.mode import choose
from dist_train.cli.options import SPELLINGS, once, progress_option, run_argument
from dist_train.cli.runs import OpenedRun, open_run, read_job, write_job
from dist_train.cli.standing import ask, is_at_work, is_unknown
from dist_train.cli.turn import own_turn
from dist_train.cli.values import Count
from dist_train.cli.verb import Verb, examples
from dist_train.errors import ConfigError, ExitCode, UnavailableError, UsageError
from dist_train.jobs.gpus import visible_gpus
from dist_train.jobs.launcher import JobHandle, Plan
from dist_train.jobs.spec import JobSpec
from dist_train.rundir import RunDir
from dist_train.rundir.progress import newest_step

if TYPE_CHECKING:
    from pydantic import BaseModel


@dataclass(frozen=True)
class Changes:
    """What may differ from the run's last start; None keeps what it was."""

    nodes: int | None = None
    gpus_per_node: int | None = None
    max_restarts: int | None = None
    mem: str | None = None
    accept_code_change: bool = False


@click.command(
    cls=Verb,
    context_settings=SPELLINGS,
    epilog=examples(
        "dist-train resume  # the newest run",
        "dist-train resume digits-1 --nodes 1 --gpus-per-node 2  # at another size",
    ),
)
@run_argument
@once("-N", "--nodes", "--nnodes", type=Count(1), help="Another number of nodes.")
@once(
    "--gpus-per-node",
    "--nproc-per-node",
    type=Count(1),
    metavar="G",
    help="Another number of processes per node.",
)
@once("--max-restarts", type=Count(0), help="Restarts from now on; the count begins anew.")
@once("--mem", metavar="64G", help="Another memory per node, where the last start had too little.")
@click.option(
    "--accept-code-change", is_flag=True, help="Go on although the code is not that of the last attempt."
)
@progress_option
@click.option("--detach", is_flag=True, help="Return at once with the job's handle.")
@click.option("--dry-run", is_flag=True, help="Print the plan and submit nothing.")
def resume(run: str, progress: str | None, detach: bool, dry_run: bool, **changes: Any) -> int:
    """Go on with RUN: one that failed, was preempted or cancelled, or whose launcher died."""
    if detach and dry_run:
        raise UsageError("--dry-run submits nothing, so there is nothing to --detach from")
    opened = open_run(run)
    _refuse_by_hand(opened)
    _refuse_without_meaning(opened, changes["mem"])
    if dry_run:
        return _dry_run(opened, Changes(**changes))
    how = choose(progress, opened.launcher)
    with own_turn(opened):
        if _is_done(opened):
            return int(ExitCode.OK)
        spec, notices = changed_spec(opened, Changes(**changes))
        for notice in notices:
            click.echo(f"[dist-train] {notice}", err=True)
        handle = _submit(opened, spec)
        return finish_submission(opened.launcher, handle, opened.run.path, detach, how)


def _refuse_by_hand(opened: OpenedRun) -> None:
    """Its partition, image and the like stand in a file that dist-train has never seen."""
    if not read_job(opened.run).get("by_hand"):
        return
    script = opened.run.plan / "job.sbatch"
    commands = {
        "slurm": f"sbatch {script if script.exists() else 'YOUR-SCRIPT'}",
        "kubernetes": "kubectl delete -f YOUR-MANIFESTS; kubectl apply -f YOUR-MANIFESTS",
    }
    raise ConfigError(
        f"{opened.word} was submitted by hand",
        cause="what else it asked for stands in its own file alone",
        mend=f"{commands[opened.handle.launcher]}   (the same run directory goes on)",
    )


def _refuse_without_meaning(opened: OpenedRun, mem: str | None) -> None:
    """As `launch` does."""
    why = getattr(opened.launcher, "refuses", {}).get("mem")
    if mem is not None and why is not None:
        raise UsageError(
            f"--mem means nothing to the {opened.launcher.name} launcher", cause=why, mend="drop it"
        )


def _is_done(opened: OpenedRun) -> bool:
    """True (and said) for a run that has nothing left to do; raises where it is at work."""
    state = ask(opened)
    if is_at_work(opened, state):
        raise ConfigError(
            f"{opened.word} is at work already: {state.detail or state.phase}",
            mend=f"dist-train cancel {opened.word}",
        )
    if is_unknown(state):
        raise UnavailableError(
            f"whether {opened.word} is at work cannot be told: {state.source}: {state.detail}",
            cause="a second start beside the first would damage the run",
            mend=f"dist-train status {opened.word}",
        )
    if state.phase == "done":
        click.echo(f"{opened.word} is done (exit code 0): there is nothing to resume")
    return state.phase == "done"


def changed_spec(opened: OpenedRun, changes: Changes) -> tuple[JobSpec, list[str]]:
    """The run's spec with the changes; raises ConfigError where this machine has too few GPUs."""
    old = opened.spec
    nodes, procs = changes.nodes or old.nodes, changes.gpus_per_node or old.procs_per_node
    spec = replace(
        old,
        run_dir=opened.run.path,  # it may have been moved since
        nodes=nodes,
        procs_per_node=procs,
        max_restarts=old.max_restarts if changes.max_restarts is None else changes.max_restarts,
        resources=_resources(old.resources, changes.mem),
        accept_code_change=changes.accept_code_change,
        config_yaml=opened.run.config.read_text(encoding="utf-8") if opened.run.config.is_file() else None,
        # Only a job that was given GPUs of this machine by name needs to be given them again.
        gpus=_gpus_again(old, nodes, procs) if old.gpus else (),
    )
    return spec, [*_size_notice(old, spec), *_gpu_notice(old, spec)]


def _resources(before: tuple[tuple[str, str], ...], mem: str | None) -> tuple[tuple[str, str], ...]:
    return before if mem is None else tuple({**dict(before), "mem": mem}.items())


def _gpus_again(old: JobSpec, nodes: int, procs: int) -> tuple[str, ...]:
    """The same GPUs as far as they are visible, then others; as many for each process as before."""
    visible = [gpu.uuid for gpu in visible_gpus()]
    same_size = (nodes, procs) == (old.nodes, old.procs_per_node)
    count = len(old.gpus) if same_size else nodes * procs * max(1, len(old.gpus) // old.world_size)
    if count > len(visible):
        raise ConfigError(
            f"{count} GPUs are needed ({nodes} node(s) x {procs}), {len(visible)} are visible here",
            mend=f"ask for at most {len(visible)} with --nodes and --gpus-per-node"
            if visible
            else "`dist-train devices` lists them; CUDA_VISIBLE_DEVICES may hide them",
        )
    kept = [uuid for uuid in old.gpus if uuid in visible]
    return tuple([*kept, *(uuid for uuid in visible if uuid not in kept)][:count])


def _gpu_notice(old: JobSpec, new: JobSpec) -> list[str]:
    gone = [uuid for uuid in old.gpus if uuid not in new.gpus]
    others = [uuid for uuid in new.gpus if uuid not in old.gpus]
    return [f"not visible any more: {', '.join(gone)}; taking {', '.join(others)}"] if gone and others else []


def _size_notice(old: JobSpec, new: JobSpec) -> list[str]:
    if old.world_size == new.world_size:
        return []
    return [
        f"{new.world_size} ranks instead of {old.world_size}: the same samples in the same order, "
        "but sums are formed in another order, so the bits may differ"
    ]


def _plan(opened: OpenedRun, spec: JobSpec) -> tuple[Plan, BaseModel]:
    options = opened.launcher.Options(**opened.options)
    return opened.launcher.plan(spec, options), options


def _dry_run(opened: OpenedRun, changes: Changes) -> int:
    """stdout is only the plan; nothing is written."""
    spec, notices = changed_spec(opened, changes)
    plan, _ = _plan(opened, spec)
    for notice in (*notices, *plan.notes, f"{plan.summary}; run directory {spec.run_dir}"):
        click.echo(f"[dist-train] {notice}", err=True)
    for _, content in plan.files:
        sys.stdout.buffer.write(content)
    sys.stdout.flush()
    return int(ExitCode.OK)


def _submit(opened: OpenedRun, spec: JobSpec) -> JobHandle:
    plan, options = _plan(opened, spec)
    for notice in plan.notes:
        click.echo(f"[dist-train] {notice}", err=True)
    _replace_plan(opened.run, plan)
    handle = opened.launcher.submit(plan)
    write_job(opened.run, opened.launcher.name, handle, spec, options.model_dump(mode="json"))
    click.echo(f"[dist-train] run {opened.run.path.name}: {plan.summary}; goes on {_since(opened)}", err=True)
    return handle


def _since(opened: OpenedRun) -> str:
    if (elsewhere := opened.elsewhere) is not None:
        return f"from the newest good checkpoint in {elsewhere}, if there is one"
    step = newest_step(opened.run)
    return "from the start (no checkpoint)" if step is None else f"from step {step}"


def _replace_plan(run: RunDir, plan: Plan) -> None:
    """plan/ holds the bytes that are submitted and no others."""
    write_plan(run, plan)
    names = {name for name, _ in (*plan.files, *plan.aside)}
    for path in run.plan.iterdir():
        if path.is_file() and path.name not in names:
            path.unlink()


COMMAND = resume
