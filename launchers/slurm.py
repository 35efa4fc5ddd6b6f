"""Slurm: one batch job, one agent per node, by submitit's script and Slurm's own commands.

Nothing depends on the shell that launched: the job's script and the run directory hold everything,
and every verb asks Slurm and the run directory anew.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from dist_train.errors import ExitCode, UnavailableError
from dist_train.jobs import JobHandle, JobSpec, JobState, Plan
from dist_train.jobs.launcher import Detached
from dist_train.jobs.logs import follow_logs
from dist_train.jobs.pace import Pace
from dist_train.jobs.spec import canonical_json
from dist_train.rundir import RunDir
from dist_train.rundir.records import read_json, write_bytes_atomic
from launchers._slurm import script, submission
from launchers._slurm.client import call
from launchers._slurm.console import Console
from launchers._slurm.options import Options
from launchers._slurm.queries import Answer, job_and_cluster, look
from launchers._slurm.standing import newest_verdict, ranks_own_code, standing, verdict_file

_TICK_S = 0.2
_AT_WORK = ("pending", "running", "requeued")
# From a verdict to Slurm's own word that the job has ended.
_SETTLE_S = 20.0
_FINAL_MARGIN_S = 10.0


class SlurmLauncher:
    """Submits the agent as one task per node of a batch job."""

    name = "slurm"
    Options = Options

    def __init__(self) -> None:
        self._paces: dict[str, Pace[Answer]] = {}

    def plan(self, spec: JobSpec, options: BaseModel) -> Plan:
        """The batch script; it needs neither srun nor a cluster."""
        assert isinstance(options, Options)
        text = script.render(spec, options)
        record = canonical_json(submission.submission_record(spec))
        where = f" in partition {options.partition}" if options.partition else ""
        kind = "GPU" if spec.device == "cuda" else "CPU"
        summary = f"{spec.nodes} node(s) x {spec.procs_per_node} {kind} processes on Slurm{where}"
        return Plan(self.name, ((script.NAME, text),), summary, ((submission.SUBMISSION, record),))

    def submit(self, plan: Plan) -> JobHandle:
        """`sbatch --test-only`, then sbatch; raises UnavailableError (69) with Slurm's own words."""
        return submission.submit(plan)

    def detached_word(self, handle: JobHandle) -> str:
        """What `--detach` prints: the job id alone, as `sbatch --parsable` does."""
        return handle.id.partition("@")[0]

    def state(self, handle: JobHandle, run_dir: str) -> JobState:
        """Asks squeue, then scontrol, then sacct, then the run's own records; the state says who answered."""
        run = RunDir(Path(run_dir))
        pace = self._paces.setdefault(handle.text, Pace(look))
        return standing(handle, run, pace.ask(handle, _happened(run, handle)))

    def logs(
        self, handle: JobHandle, run_dir: str, rank: int | None, attempt: int | None, follow: bool
    ) -> Iterator[str]:
        """The run directory's log files; no node is asked."""
        run = RunDir(Path(run_dir))
        return follow_logs(run, rank, attempt, follow, lambda: self.state(handle, run_dir).phase in _AT_WORK)

    def cancel(self, handle: JobHandle, run_dir: str) -> None:
        """A running job saves and stops (77); one that waits, or that does not obey, is scancelled."""
        run = RunDir(Path(run_dir))
        state = self.state(handle, run_dir)
        if state.phase == "unknown" and state.source != "run directory":
            raise UnavailableError(f"Slurm does not say where job {handle.id} is: {state.detail}")
        if state.phase not in _AT_WORK:
            return
        asked = run.control / "cancel"
        if not asked.exists():
            write_bytes_atomic(asked, b"cancel\n")
        if state.phase != "running" or time.time() - asked.stat().st_mtime > _grace_s(run):
            job, where = job_and_cluster(handle)
            submission.cancelled(job, call(["scancel", *where, job]))
            run.secrets.unlink(missing_ok=True)
            self._forget(handle)

    def wait(self, handle: JobHandle, run_dir: str) -> int:
        """Show what the job shows until it ends; Ctrl-C raises Detached, and the job goes on."""
        try:
            return _Follower(self, handle, RunDir(Path(run_dir))).run()
        except KeyboardInterrupt:
            raise Detached from None

    def _forget(self, handle: JobHandle) -> None:
        self._paces.pop(handle.text, None)


class _Follower:
    """Tails the job's output and asks Slurm, ever more seldom, how it stands."""

    def __init__(self, launcher: SlurmLauncher, handle: JobHandle, run: RunDir) -> None:
        self._launcher = launcher
        self._handle = handle
        self._run = run
        self._job = job_and_cluster(handle)[0]
        self._console = Console(run, self._job)
        self._said = ""
        self._settle_by: float | None = None

    def run(self) -> int:
        """Until Slurm says that the job has ended, or has not said so long after its final verdict."""
        while True:
            self._show()
            state = self._launcher.state(self._handle, str(self._run.path))
            self._say(state)
            if state.phase not in _AT_WORK and state.phase != "unknown":
                time.sleep(_TICK_S)
                self._show()
                return state.exit_code if state.exit_code is not None else int(ExitCode.UNAVAILABLE)
            if (code := self._overdue_verdict()) is not None:
                return code
            time.sleep(_TICK_S)

    def _show(self) -> None:
        for line in self._console.lines():
            sys.stdout.buffer.write(line + b"\n")
        sys.stdout.flush()

    def _say(self, state: JobState) -> None:
        text = f"job {self._job} is {state.phase}" + (f": {state.detail}" if state.detail else "")
        if state.next:
            text += f"  ({state.next[0]})"
        if text != self._said and state.exit_code != 0:
            print(f"[dist-train] {text}", file=sys.stderr)
        self._said = text

    def _overdue_verdict(self) -> int | None:
        """A final verdict stands even if Slurm has not noticed yet, or cannot be asked."""
        verdict = newest_verdict(self._run, self._job)
        again = (ExitCode.PREEMPTED, ExitCode.ATTEMPT_LOST)
        if verdict is None or verdict in again or not _is_newest_start(self._run, self._job):
            self._settle_by = None
            return None
        self._settle_by = self._settle_by or time.monotonic() + _SETTLE_S
        return ranks_own_code(self._run, verdict) if time.monotonic() > self._settle_by else None


def _is_newest_start(run: RunDir, job: str) -> bool:
    """Whether the newest start of the job (by its rendezvous file) has its verdict."""
    path = verdict_file(run, job)
    starts = [name.name.rpartition(".")[2] for name in run.control.glob(f"rdzv-{job}.*")]
    newest = max((int(start) for start in starts if start.isdigit()), default=0)
    return path is not None and int(path.name.rpartition(".")[2]) >= newest


def _happened(run: RunDir, handle: JobHandle) -> tuple[bool, str]:
    """Changes when agent 0 came or went: then Slurm has something new to tell."""
    verdict = verdict_file(run, job_and_cluster(handle)[0])
    return run.lease.exists(), verdict.name if verdict else ""


def _grace_s(run: RunDir) -> float:
    record = read_json(run.plan / submission.SUBMISSION)
    return _FINAL_MARGIN_S + (JobSpec.from_json(record["spec"]).grace_s if record else 30.0)


LAUNCHER = SlurmLauncher()
