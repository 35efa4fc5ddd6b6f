"""What the run's own directory here keeps of its job; pods never write into it."""

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
from launchers._kubernetes.manifest.options import Options
from launchers._kubernetes.state.ending import vanished
from launchers._kubernetes.state.handles import Job
from launchers._kubernetes.state.verdict import Verdict

MANIFESTS, SUBMISSION = "manifests.yaml", "submission.json"
_HERE = "run directory here"


def submission_bytes(spec: JobSpec, options: Options, owned: list[str]) -> bytes:
    """What belongs to the manifests and does not stand in them. `owned`: the one patch after the creation."""
    record = {"spec": spec.to_json(), "options": options.model_dump(mode="json"), "ownerReferences": owned}
    return canonical_json(record)


class Record:
    """Read anew at each use: other commands write there too."""

    def __init__(self, run: RunDir) -> None:
        self.run = run

    @property
    def spec(self) -> JobSpec | None:
        """The job as it was planned."""
        record = read_json(self.run.plan / SUBMISSION)
        return None if record is None else JobSpec.from_json(record["spec"])

    @property
    def happened(self) -> tuple[bool, bool]:
        """Changes when another command has cancelled the run, or seen its end."""
        return self._cancelled.exists(), self._ended.exists()

    @property
    def server(self) -> str | None:
        """The API server of the cluster that the job went to."""
        told = read_json(self._cluster)
        return None if told is None else str(told.get("server"))

    def begin(self, cluster: Cluster) -> None:
        """A new submission: which cluster it went to; nothing of the last one counts."""
        self._cancelled.unlink(missing_ok=True)
        self._ended.unlink(missing_ok=True)
        write_json_atomic(self._cluster, {"context": cluster.context, "server": cluster.server})

    def reopen(self, job: Job) -> Cluster:
        """The cluster that the job went to, whatever the kubeconfig's current context is now."""
        told = read_json(self._cluster) or {}
        connection = connect(job.context or told.get("context"))
        if told and told.get("server") != connection.server:
            raise UnavailableError(
                f"the run is on {told['server']}, and the context {connection.context} now means "
                f"{connection.server}",
                cause="the kubeconfig has changed since the run was launched",
                mend="export KUBECONFIG=FILE of that cluster",
            )
        return Cluster(connection, job.namespace)

    def cancelled(self) -> None:
        """The removal was ordered by `dist-train cancel`."""
        if not self._cancelled.exists():
            write_bytes_atomic(self._cancelled, b"cancel\n")

    def ended(self, handle: JobHandle, state: JobState, verdict: Verdict | None) -> None:
        """What was seen of the end outlives the objects; the failure is kept as agents keep it."""
        if verdict is not None and verdict.failure is not None and state.phase == "failed":
            write_failure(self.run, _from_here(verdict.failure, self.run))
        if verdict is not None and verdict.result is not None and state.phase == "done":
            write_json_atomic(self.run.result, verdict.result)
        write_json_atomic(self._ended, {"handle": handle.text, "state": asdict(state)})

    def without_objects(self, handle: JobHandle, told: Verdict | None = None) -> JobState:
        """The cluster has nothing of the job any more; `told` is what a watch has seen of its end."""
        if (seen := self.seen_end(handle)) is not None:
            return seen
        if self._cancelled.exists():
            return JobState(
                "stopped", _HERE, "cancelled; the cluster has nothing of it", int(ExitCode.CANCELLED)
            )
        return vanished(told)

    def seen_end(self, handle: JobHandle) -> JobState | None:
        """The end that a command of ours saw."""
        found = read_json(self._ended)
        if found is None or found.get("handle") != handle.text:
            return None
        state: dict[str, Any] = found["state"]
        lists = {name: tuple(state[name]) for name in ("next", "nodes")}
        return replace(JobState(**{**state, **lists}), source=_HERE, next=())

    @property
    def _cancelled(self) -> Path:
        return self.run.control / "cancel"

    @property
    def _ended(self) -> Path:
        return self.run.control / "ended.json"

    @property
    def _cluster(self) -> Path:
        return self.run.control / "cluster.json"


def _from_here(failure: Failure, run: RunDir) -> Failure:
    """The commands that its agent proposed hold the pods' path of the run."""
    hints = [f"dist-train resume {run.path}"]
    if failure.rank is not None:
        hints.insert(0, f"dist-train logs {run.path} --rank {failure.rank}")
    log = None if failure.log is None else f"{failure.log} (on the run volume)"
    return replace(failure, next=tuple(hints), log=log)
