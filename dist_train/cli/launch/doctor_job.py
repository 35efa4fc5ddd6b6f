"""The short job of `doctor`: launched as any other, by a process of its own; its facts are in its output."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dist_train.cli.launch.launch_options import OptionGroup, option_groups
from dist_train.cli.run.find_run import ROOT, open_found
from dist_train.errors import ExitCode
from dist_train.jobs.gpus import visible_gpus
from dist_train.rundir import RunDir
from dist_train.rundir.directory import free_names
from dist_train.rundir.failure import read_failure

if TYPE_CHECKING:
    from dist_train.doctor.facts import Facts, JobEnd

MODULE = "dist_train.cluster_check"
# Of the options of launch: those that decide on which nodes a job runs, and how it reaches them.
_KEPT = frozenset(
    {
        *("launcher", "name", "run_dir", "nodes", "gpus_per_node", "gpus", "device", "time", "mem"),
        *("cpus_per_gpu", "env", "secret", "interface", "dry_run"),
    }
)
_TIME_LIMIT = "10"  # minutes
_PATIENCE_S = 60.0  # for a local job that has been interrupted


def job_options() -> list[OptionGroup]:
    """The options of launch that a doctor's job has, in their groups; each launcher's own are all there."""
    groups = [
        group if group.launchers is not None else replace(group, options=_kept(group.options))
        for group in option_groups()
    ]
    return [group for group in groups if group.options]


def _kept(options: Iterable[click.Option]) -> list[click.Option]:
    return [option for option in options if option.name in _KEPT]


def launch_words(options: Mapping[str, Any], groups: Iterable[OptionGroup]) -> tuple[list[str], Path]:
    """The words after `launch` for options that were given, and the run directory that they mean."""
    flags = {
        str(option.name): next(flag for flag in option.opts if flag.startswith("--"))
        for group in groups
        for option in group.options
    }
    words: list[str] = []
    for name, value in options.items():
        for one in value if isinstance(value, tuple) else (value,):
            words += [flags[name]] if one is True else [flags[name], str(one)]
    if "name" in options or "run_dir" in options:
        folder = Path(options.get("run_dir") or ROOT / options["name"]).absolute()
    else:
        folder = next(path for path in free_names(ROOT.absolute(), "doctor") if not path.exists())
        words += ["--name", folder.name]
    if "time" not in options:
        words += ["--time", _TIME_LIMIT]
    if _would_be_one_cpu_rank(options):
        words += ["--gpus-per-node", "2"]
    return [*words, "--max-restarts", "0"], folder


def _would_be_one_cpu_rank(options: Mapping[str, Any]) -> bool:
    """Whether launch would start one process, which has no link to measure."""
    if options.get("launcher", "local") != "local" or "gpus_per_node" in options or "gpus" in options:
        return False
    return options.get("device") == "cpu" or (options.get("device") != "cuda" and not visible_gpus())


def launch_job(words: Iterable[str]) -> tuple[int, list[str]]:
    """Launch it and wait; return the exit code and the lines of stdout. stderr is the command's own."""
    argv = [sys.executable, "-P", "-m", "dist_train.cli.main", "launch", *words, "-m", MODULE]
    lines: list[str] = []
    # Ctrl-C reaches it too, and it detaches or stops by itself.
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace"
    ) as job:
        assert job.stdout is not None
        try:
            lines += job.stdout
            code = job.wait()
        except KeyboardInterrupt:
            _wait_or_kill(job)
            code = int(ExitCode.INTERRUPTED)
        except BaseException:
            job.terminate()
            _wait_or_kill(job)
            raise
    return (code if code >= 0 else 128 - code), lines


def _wait_or_kill(job: subprocess.Popen[str]) -> None:
    try:
        job.communicate(timeout=_PATIENCE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        job.kill()


def facts_of(run: RunDir, code: int | None, lines: Iterable[str]) -> Facts | None:
    """The facts in the output, and how the job ended; None where it ended well without any."""
    from dist_train.doctor.fact_lines import read_facts
    from dist_train.doctor.facts import Facts, JobFacts

    found = read_facts(lines)
    if found is None and not code:
        return None
    if found is None:
        opened = open_found(run)
        spec = opened.spec
        size = JobFacts(
            nodes=spec.nodes, procs=spec.procs_per_node, device=spec.device, launcher=opened.launcher.name
        )
        found = Facts(job=size)
    return found.model_copy(update={"end": _end(run, code) if code else None})


def _end(run: RunDir, code: int) -> JobEnd:
    from dist_train.doctor.facts import JobEnd

    failure = read_failure(run)
    if failure is None:
        return JobEnd(code=code)
    return JobEnd(code=code, message=failure.message, hint=failure.hint or "", node=failure.node_rank)
