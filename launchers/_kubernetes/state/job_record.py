"""Files of the run directory on the launching machine: cluster, cancellation, end. Pods never write them."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dist_train.errors import ExitCode, UnavailableError
from dist_train.jobs import JobHandle, JobSpec, JobState
from dist_train.jobs.spec import canonical_json
from dist_train.rundir import RunDir
from dist_train.rundir.failure import Failure, write_failure
from dist_train.rundir.records import read_json, write_bytes_atomic, write_json_atomic
from launchers._kubernetes.api.cluster import Cluster
from launchers._kubernetes.api.connection import connect
from launchers._kubernetes.manifest.kubernetes_options import Options
from launchers._kubernetes.manifest.option_values import NEVER
from launchers._kubernetes.state.handles import Job
from launchers._kubernetes.state.job_result import state_of_removed_job
from launchers._kubernetes.state.verdict import Verdict

MANIFESTS, SUBMISSION = "manifests.yaml", "submission.json"
_HERE = "run directory here"


def submission_bytes(spec: JobSpec, options: Options, owned: list[str]) -> bytes:
    """What belongs to the manifests and is not in them. `owned`: objects that get an owner afterwards."""
    record = {"spec": spec.to_json(), "options": options.model_dump(mode="json"), "ownerReferences": owned}
    return canonical_json(record)


class JobRecord:
    """The records of one run; read at each use, since other commands write them too."""

    def __init__(self, run: RunDir) -> None:
        self.run = run

    @property
    def spec(self) -> JobSpec | None:
        """The job spec of the plan."""
        record = read_json(self.run.plan / SUBMISSION)
        return None if record is None else JobSpec.from_json(record["spec"])

    @property
    def submission(self) -> tuple[JobSpec, Options] | None:
        """The job spec and the options of the plan."""
        record = read_json(self.run.plan / SUBMISSION)
        return None if record is None else (JobSpec.from_json(record["spec"]), Options(**record["options"]))

    @property
    def ttl(self) -> str | None:
        """--ttl of the plan; None: the ended job is never removed by itself, or there is no record."""
        ttl = ((read_json(self.run.plan / SUBMISSION) or {}).get("options") or {}).get("ttl")
        return None if ttl in (None, NEVER) else str(ttl)

    @property
    def markers(self) -> tuple[bool, bool]:
        """Whether a command has cancelled the run, and whether one has recorded its end."""
        return self.run.cancel_request.exists(), self._ended.exists()

    @property
    def server(self) -> str | None:
        """The API server to which the job was submitted."""
        cluster = read_json(self._cluster)
        return None if cluster is None else str(cluster.get("server"))

    def start(self, cluster: Cluster) -> None:
        """Record a new submission: its cluster; the markers of the previous one are removed."""
        self.run.cancel_request.unlink(missing_ok=True)
        self._ended.unlink(missing_ok=True)
        write_json_atomic(self._cluster, {"context": cluster.context, "server": cluster.server})

    def open_cluster(self, job: Job) -> Cluster:
        """Connect to the job's cluster, whatever the kubeconfig's current context is now."""
        recorded = read_json(self._cluster) or {}
        connection = connect(job.context or recorded.get("context"))
        if recorded and recorded.get("server") != connection.server:
            raise UnavailableError(
                f"the run is on {recorded['server']}, and the context {connection.context} now means "
                f"{connection.server}",
                cause="the kubeconfig has changed since the run was launched",
                hint="export KUBECONFIG=FILE of that cluster",
            )
        return Cluster(connection, job.namespace)

    def write_cancelled(self) -> None:
        """Record that `dist-train cancel` has requested the removal."""
        if not self.run.cancel_request.exists():
            write_bytes_atomic(self.run.cancel_request, b"cancel\n")

    def resume_command(self, more_memory: str = "") -> str:
        """The command that continues the run; `more_memory`: with this --mem."""
        return f"dist-train resume {self.run.path}" + (f" --mem {more_memory}" if more_memory else "")

    def write_end(
        self, handle: JobHandle, state: JobState, verdict: Verdict | None, more_memory: str = ""
    ) -> None:
        """Record how the job has ended, for the time after its objects; a failure also as agents write it.

        Args:
            more_memory: of a run that was out of memory, the next --mem.
        """
        if verdict is not None and verdict.failure is not None and state.phase == "failed":
            resume = self.resume_command(more_memory)
            write_failure(self.run, _with_local_commands(verdict.failure, self.run, resume))
        if verdict is not None and verdict.result is not None and state.phase == "done":
            write_json_atomic(self.run.result, verdict.result)
        write_json_atomic(self._ended, {"handle": handle.text, "state": asdict(state)})

    def state_without_objects(self, handle: JobHandle, verdict: Verdict | None = None) -> JobState:
        """The state of a job that the cluster no longer has; `verdict`: the one that a watch saw."""
        if (recorded := self.recorded_end(handle)) is not None:
            return recorded
        if self.run.cancel_request.exists():
            return JobState(
                "stopped", _HERE, "cancelled; the cluster has nothing of it", int(ExitCode.CANCELLED)
            )
        return state_of_removed_job(verdict)

    def recorded_end(self, handle: JobHandle) -> JobState | None:
        """The end that an earlier command has recorded."""
        found = read_json(self._ended)
        if found is None or found.get("handle") != handle.text:
            return None
        state: dict[str, Any] = found["state"]
        lists = {name: tuple(state[name]) for name in ("next", "nodes")}
        return replace(JobState(**{**state, **lists}), source=_HERE, next=())

    @property
    def _ended(self) -> Path:
        return self.run.control / "ended.json"

    @property
    def _cluster(self) -> Path:
        return self.run.control / "cluster.json"


def _with_local_commands(failure: Failure, run: RunDir, resume: str) -> Failure:
    """Replace the agent's hints, which name the run's path in the pods, by commands for this machine."""
    hints = [resume]
    if failure.rank is not None:
        hints.insert(0, f"dist-train logs {run.path} --rank {failure.rank}")
    log = None if failure.log is None else f"{failure.log} (on the run volume)"
    return replace(failure, next=tuple(hints), log=log)
