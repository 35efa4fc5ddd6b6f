"""`dist-train resume`: go on with a run from its newest good checkpoint, in its own directory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dist_train.cli.launch.log_limit_notice import log_limit_notice
from dist_train.cli.launch.prepare_run import write_plan
from dist_train.cli.launch.profiled_ranks import profiled_ranks_at, refuse_unfit_profile
from dist_train.cli.launch.rank_cores import refuse_unfit_binding
from dist_train.cli.launch.shown_ranks import shown_ranks_at
from dist_train.cli.launch.strategy_check import check_model, check_strategy
from dist_train.cli.launch.submit_job import finish_submission, print_notices, print_plan, submit_plan
from dist_train.cli.live.display_mode import choose
from dist_train.cli.options.param_types import (
    MOST_NODES,
    MOST_PROCESSES_PER_NODE,
    Count,
    LogLimit,
    Ranks,
    Steps,
)
from dist_train.cli.options.verb import Verb, examples
from dist_train.cli.options.verb_options import SPELLINGS, once, progress_option, run_argument
from dist_train.cli.options.working_folder import refuse_missing_folder
from dist_train.cli.run.find_run import OpenedRun, open_run, read_job
from dist_train.cli.run.job_state import is_active, is_unknown, query_state
from dist_train.cli.run.resume_lock import resume_lock
from dist_train.cli.run.run_owner import refuse_foreign
from dist_train.errors import ConfigError, ExitCode, UnavailableError, UsageError
from dist_train.jobs.gpus import visible_gpus
from dist_train.jobs.launcher import JobHandle
from dist_train.jobs.spec import JobSpec
from dist_train.rundir.committed_steps import newest_step

if TYPE_CHECKING:
    from pydantic import BaseModel


@dataclass(frozen=True)
class Changes:
    """Changes to the run's last start; None keeps the value."""

    nodes: int | None = None
    gpus_per_node: int | None = None
    max_restarts: int | None = None
    mem: str | None = None
    bind: str | None = None
    log_limit: int | None = None
    profile: str | None = None
    profile_ranks: str | None = None
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
@once("-N", "--nodes", "--nnodes", type=Count(1, MOST_NODES), help="Another number of nodes.")
@once(
    "--gpus-per-node",
    "--nproc-per-node",
    type=Count(1, MOST_PROCESSES_PER_NODE),
    metavar="G",
    help="Another number of processes per node.",
)
@once("--max-restarts", type=Count(0), help="Restarts from now on; the count begins again at 0.")
@once("--mem", metavar="64G", help="Another memory per node, where the last start had too little.")
@once("--bind", metavar="none|cores|numa|CPUS", help="Another binding of ranks to cores.")
@once("--log-limit", type=LogLimit(), metavar="4G", help="Another size of each rank's log.")
@once("--profile", metavar="FIRST:LAST", help="Steps to profile from now on, or none.", type=Steps())
@once("--profile-ranks", metavar="RANKS", help="Other ranks to profile: all, or 0,3.", type=Ranks())
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
    refuse_missing_folder()
    opened = open_run(run)
    refuse_foreign(opened.run)
    _refuse_by_hand(opened)
    _refuse_without_meaning(opened, changes["mem"])
    if dry_run:
        spec, notices = changed_spec(opened, Changes(**changes))
        return print_plan(opened.launcher, spec, _options(opened), notices)
    how = choose(progress, opened.launcher, opened.spec)
    with resume_lock(opened):
        if _is_done(opened):
            return int(ExitCode.OK)
        spec, notices = changed_spec(opened, Changes(**changes))
        print_notices(notices)
        handle = _submit(opened, spec)
        return finish_submission(opened.launcher, handle, opened.run.path, detach, how)


def _refuse_by_hand(opened: OpenedRun) -> None:
    """Raise ConfigError: its partition, image and the like are in a file that dist-train does not have."""
    if not read_job(opened.run).get("by_hand"):
        return
    script = opened.run.plan / "job.sbatch"
    commands = {
        "slurm": f"sbatch {script if script.exists() else 'YOUR-SCRIPT'}",
        "kubernetes": "kubectl delete -f YOUR-MANIFESTS; kubectl apply -f YOUR-MANIFESTS",
    }
    raise ConfigError(
        f"{opened.short_name} was submitted by hand",
        cause="what else it asked for stands in its own file alone",
        hint=f"{commands[opened.handle.launcher]}   (the same run directory goes on)",
    )


def _refuse_without_meaning(opened: OpenedRun, mem: str | None) -> None:
    """Raise UsageError for --mem where the launcher cannot honour it, as `launch` does."""
    why = opened.launcher.refuses.get("mem")
    if mem is not None and why is not None:
        raise UsageError(
            f"--mem means nothing to the {opened.launcher.name} launcher", cause=why, hint="drop it"
        )


def _is_done(opened: OpenedRun) -> bool:
    """Whether the run is done (which is printed); raise if it is running, or in an unknown state."""
    state = query_state(opened)
    if is_active(opened, state):
        raise ConfigError(
            f"{opened.short_name} is at work already: {state.detail or state.phase}",
            hint=f"dist-train cancel {opened.short_name}",
        )
    if is_unknown(state):
        raise UnavailableError(
            f"whether {opened.short_name} is running is unknown: {state.source}: {state.detail}",
            cause="a second start beside the first would damage the run",
            hint=f"dist-train status {opened.short_name}",
        )
    if state.phase == "done":
        click.echo(f"{opened.short_name} is done (exit code 0): there is nothing to resume")
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
        bind=old.bind if changes.bind is None else changes.bind,
        profile=old.profile if changes.profile is None else changes.profile,
        profile_ranks=changes.profile_ranks or profiled_ranks_at(old.profile_ranks, nodes * procs),
        log_limit_bytes=old.log_limit_bytes if changes.log_limit is None else changes.log_limit,
        show_ranks=shown_ranks_at(old.show_ranks, nodes * procs),
        accept_code_change=changes.accept_code_change,
        config_yaml=opened.run.config.read_text(encoding="utf-8") if opened.run.config.is_file() else None,
        # Only a local job has GPUs by UUID, which may be invisible now.
        gpus=_gpus_again(old, nodes, procs) if old.gpus else (),
    )
    refuse_unfit_binding(spec, opened.launcher.name)
    refuse_unfit_profile(spec)
    notices = [*_size_notice(old, spec), *_shown_ranks_notice(old, spec), *_gpu_notice(old, spec)]
    if spec.world_size != old.world_size and spec.config_yaml is not None:
        notices += _strategy_notice(spec, str(opened.run.config))
    if changes.log_limit is not None and opened.run_dir_on_nodes is None:
        notices += log_limit_notice(changes.log_limit, opened.run.path)
    return spec, notices


def _resources(before: tuple[tuple[str, str], ...], mem: str | None) -> tuple[tuple[str, str], ...]:
    return before if mem is None else tuple({**dict(before), "mem": mem}.items())


def _gpus_again(old: JobSpec, nodes: int, procs: int) -> tuple[str, ...]:
    """The same GPUs if they are visible, then others; as many per process as before."""
    visible = [gpu.uuid for gpu in visible_gpus()]
    same_size = (nodes, procs) == (old.nodes, old.procs_per_node)
    count = len(old.gpus) if same_size else nodes * procs * max(1, len(old.gpus) // old.world_size)
    if count > len(visible):
        raise ConfigError(
            f"{count} GPUs are needed ({nodes} node(s) x {procs}), {len(visible)} are visible here",
            hint=f"ask for at most {len(visible)} with --nodes and --gpus-per-node"
            if visible
            else "`dist-train devices` lists them, and what hides them",
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


def _shown_ranks_notice(old: JobSpec, new: JobSpec) -> list[str]:
    if old.show_ranks == new.show_ranks:
        return []
    return [
        f"stdout is shown of rank {new.show_ranks}: this size lacks some of --show-ranks {old.show_ranks}"
    ]


def _strategy_notice(spec: JobSpec, source: str) -> list[str]:
    """Refuse a size that the strategy's mesh does not have."""
    from dist_train.config.load import load_text

    resolved = load_text(spec.config_yaml or "", source)
    fit = check_strategy(
        resolved.config.strategy,
        resolved.config.trainer.accumulate,
        spec.world_size,
        spec.device,
        resolved.origins,
    )
    size, folder = (spec.nodes, spec.procs_per_node), Path(spec.target.folder)
    unchecked = fit.unchecked or check_model(resolved.config, folder, *size, resolved.origins)
    return [] if unchecked is None else [unchecked]


def _submit(opened: OpenedRun, spec: JobSpec) -> JobHandle:
    options = _options(opened)
    plan = opened.launcher.plan(spec, options)
    print_notices((*plan.notes, *opened.launcher.notices(spec)))
    write_plan(opened.run, plan)
    handle = submit_plan(opened.launcher, plan, spec, options)
    print_notices([f"run {opened.run.path.name}: {plan.summary}; goes on {_resume_point(opened)}"])
    return handle


def _options(opened: OpenedRun) -> BaseModel:
    return opened.launcher.Options(**opened.options)


def _resume_point(opened: OpenedRun) -> str:
    if (elsewhere := opened.run_dir_on_nodes) is not None:
        return f"from the newest good checkpoint in {elsewhere}, if there is one"
    step = newest_step(opened.run)
    return "from the start (no checkpoint)" if step is None else f"from step {step}"


COMMAND = resume
