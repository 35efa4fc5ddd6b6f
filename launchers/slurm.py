"""Slurm: one batch job with one agent per node, by submitit's script and Slurm's own commands.

Nothing depends on the shell that launched: the job's script and the run directory have all data, and every
verb queries Slurm and the run directory again.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from dist_train.errors import ExitCode, UnavailableError
from dist_train.jobs import JobHandle, JobSpec, JobState, Launcher, Plan
from dist_train.jobs.launcher import Detached
from dist_train.jobs.log_files import follow_logs
from dist_train.jobs.polling import Pace
from dist_train.jobs.spec import canonical_json
from dist_train.jobs.terminal_writer import TerminalWriter
from dist_train.rundir import RunDir
from dist_train.rundir.file_age import file_age_s
from dist_train.rundir.records import read_json, write_bytes_atomic
from launchers._slurm import batch_script, sbatch_submission
from launchers._slurm.absent_variables import absence_notices
from launchers._slurm.setup_lines import check_setup
from launchers._slurm.slurm_client import call
from launchers._slurm.slurm_options import Options
from launchers._slurm.slurm_output import JobConsole
from launchers._slurm.slurm_queries import QueryAnswer, job_and_cluster, query_job
from launchers._slurm.slurm_state import job_state, newest_verdict, rank_exit_code, verdict_file

_TICK_S = 0.2
_ACTIVE_PHASES = ("pending", "running", "requeued")
# From a verdict to Slurm's report that the job has ended.
_VERDICT_GRACE_S = 20.0
_FINAL_MARGIN_S = 10.0
# At the end, how long a terminal that takes nothing is waited for.
_LAST_WORDS_S = 2.0


class SlurmLauncher(Launcher):
    """The launcher `slurm`: a batch job with one task per node, which runs the agent."""

    name = "slurm"
    Options = Options

    def __init__(self) -> None:
        self._paces: dict[str, Pace[QueryAnswer]] = {}

    def plan(self, spec: JobSpec, options: BaseModel) -> Plan:
        """Render the batch script; neither srun nor a cluster is needed."""
        assert isinstance(options, Options)
        check_setup(options.setup)
        text = batch_script.render(spec, options)
        record = canonical_json(sbatch_submission.submission_record(spec))
        where = f" in partition {options.partition}" if options.partition else ""
        kind = "GPU" if spec.device == "cuda" else "CPU"
        summary = f"{spec.nodes} node(s) x {spec.procs_per_node} {kind} processes on Slurm{where}"
        aside = ((sbatch_submission.SUBMISSION, record),)
        return Plan(
            self.name, ((batch_script.NAME, text),), summary, aside, batch_script.notes(spec, options)
        )

    def notices(self, spec: JobSpec) -> tuple[str, ...]:
        """Variables of this shell that the job, or sbatch, will not have."""
        return (*absence_notices(spec, os.environ), *sbatch_submission.dropped_notices(os.environ))

    def submit(self, plan: Plan) -> JobHandle:
        """Run `sbatch --test-only`, then sbatch; raise UnavailableError (69) with Slurm's message."""
        return sbatch_submission.submit(plan)

    def detach_output(self, handle: JobHandle) -> str:
        """What `--detach` prints: the job id alone, as `sbatch --parsable` does."""
        return handle.id.partition("@")[0]

    def state(self, handle: JobHandle, run_dir: str) -> JobState:
        """Query squeue, then scontrol, then sacct, then the run's records; `source` names what answered."""
        run = RunDir(Path(run_dir))
        pace = self._paces.setdefault(handle.text, Pace(query_job))
        return job_state(handle, run, pace.ask(handle, _change_marker(run, handle)))

    def logs(
        self, handle: JobHandle, run_dir: str, rank: int | None, attempt: int | None, follow: bool
    ) -> Iterator[str]:
        """Read the run directory's log files."""
        run = RunDir(Path(run_dir))
        return follow_logs(
            run, rank, attempt, follow, lambda: self.state(handle, run_dir).phase in _ACTIVE_PHASES
        )

    def cancel(self, handle: JobHandle, run_dir: str) -> None:
        """Ask a running job to save and stop (77); scancel a pending one, or one that does not stop."""
        run = RunDir(Path(run_dir))
        state = self.state(handle, run_dir)
        if state.phase == "unknown" and state.source != "run directory":
            raise UnavailableError(f"Slurm does not say where job {handle.id} is: {state.detail}")
        if state.phase not in _ACTIVE_PHASES:
            return
        request = run.cancel_request
        if not request.exists():
            write_bytes_atomic(request, b"cancel\n")
        age = file_age_s(request, run.control)
        if state.phase != "running" or (age is not None and age > _grace_s(run)):
            job, where = job_and_cluster(handle)
            sbatch_submission.check_cancelled(job, call(["scancel", *where, job]))
            run.secrets.unlink(missing_ok=True)
            self._forget(handle)

    def wait(self, handle: JobHandle, run_dir: str) -> int:
        """Print the job's output until it ends; Ctrl-C raises Detached, and the job goes on."""
        try:
            return _JobFollower(self, handle, RunDir(Path(run_dir))).run()
        except KeyboardInterrupt:
            raise Detached from None

    def _forget(self, handle: JobHandle) -> None:
        self._paces.pop(handle.text, None)


class _JobFollower:
    """Tails the job's output and polls its state, with growing intervals."""

    def __init__(self, launcher: SlurmLauncher, handle: JobHandle, run: RunDir) -> None:
        self._launcher = launcher
        self._handle = handle
        self._run = run
        self._job = job_and_cluster(handle)[0]
        self._console = JobConsole(run, self._job)
        self._printed = ""
        self._verdict_deadline: float | None = None
        # A terminal whose reader has stopped must stop neither this loop nor Ctrl-C.
        self._writer = TerminalWriter(self._say_dropped, self._note)

    def run(self) -> int:
        """Follow until Slurm reports the end, or until long after the final verdict."""
        try:
            return self._follow()
        finally:
            self._writer.close(_LAST_WORDS_S)

    def _follow(self) -> int:
        while True:
            self._show()
            state = self._launcher.state(self._handle, str(self._run.path))
            self._print_change(state)
            if state.phase not in _ACTIVE_PHASES and state.phase != "unknown":
                time.sleep(_TICK_S)
                while self._writer.is_behind:
                    time.sleep(_TICK_S)
                self._show()
                return state.exit_code if state.exit_code is not None else int(ExitCode.UNAVAILABLE)
            if (code := self._overdue_verdict()) is not None:
                return code
            time.sleep(_TICK_S)

    def _show(self) -> None:
        if self._writer.is_behind:
            return  # the lines stay in the files, and are read later
        for line in self._console.lines():
            self._writer.put(sys.stdout, line + b"\n")

    def _note(self, text: str) -> None:
        self._writer.put(sys.stderr, f"[dist-train] {text}\n".encode(errors="replace"), always=True)

    def _say_dropped(self, lines: int) -> None:
        self._note(f"{lines} lines not shown: this terminal took no output; `dist-train logs` has them")

    def _print_change(self, state: JobState) -> None:
        text = f"job {self._job} is {state.phase}" + (f": {state.detail}" if state.detail else "")
        if state.next:
            text += f"  ({state.next[0]})"
        if text != self._printed and state.exit_code != 0:
            self._note(text)
        self._printed = text

    def _overdue_verdict(self) -> int | None:
        """The code of a final verdict, if Slurm has not reported the end in time or does not answer."""
        verdict = newest_verdict(self._run, self._job)
        again = (ExitCode.PREEMPTED, ExitCode.ATTEMPT_LOST)
        if verdict is None or verdict in again or not _is_newest_start(self._run, self._job):
            self._verdict_deadline = None
            return None
        self._verdict_deadline = self._verdict_deadline or time.monotonic() + _VERDICT_GRACE_S
        return rank_exit_code(self._run, verdict) if time.monotonic() > self._verdict_deadline else None


def _is_newest_start(run: RunDir, job: str) -> bool:
    """Whether the newest start of the job (by its rendezvous file) has its verdict."""
    path = verdict_file(run, job)
    starts = [name.name.rpartition(".")[2] for name in run.control.glob(f"rdzv-{job}.*")]
    newest = max((int(start) for start in starts if start.isdigit()), default=0)
    return path is not None and int(path.name.rpartition(".")[2]) >= newest


def _change_marker(run: RunDir, handle: JobHandle) -> tuple[bool, str]:
    """A value that changes when agent 0 starts or ends: then Slurm's state has changed too."""
    verdict = verdict_file(run, job_and_cluster(handle)[0])
    return run.lease.exists(), verdict.name if verdict else ""


def _grace_s(run: RunDir) -> float:
    record = read_json(run.plan / sbatch_submission.SUBMISSION)
    return _FINAL_MARGIN_S + (JobSpec.from_json(record["spec"]).grace_s if record else 30.0)


LAUNCHER = SlurmLauncher()
