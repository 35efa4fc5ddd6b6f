"""The Kubernetes launcher: one agent per pod, as a Job, JobSet, Volcano job or TrainJob, by TorchX's Runner.

Nothing depends on the shell that launched, nor on access to the run volume: every verb queries the API
server, and the agents' results are in their pods' termination messages.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel

from dist_train.errors import DistTrainError, NotFoundError, UnavailableError
from dist_train.jobs import JobHandle, JobSpec, JobState, Launcher, Plan
from dist_train.jobs.launcher import Detached
from dist_train.jobs.polling import Pace
from dist_train.rundir import RunDir
from dist_train.rundir.events import append_event
from launchers._kubernetes.api.api_errors import Unauthorized, Unreachable
from launchers._kubernetes.api.cluster import Cluster
from launchers._kubernetes.follow.job_follower import ACTIVE_PHASES, JobFollower, exit_code_of
from launchers._kubernetes.follow.tail_logs import follow_logs, read_logs
from launchers._kubernetes.manifest import app, pod_paths, render, summary, volcano
from launchers._kubernetes.manifest.kubernetes_options import Options
from launchers._kubernetes.manifest.names import object_name, run_label
from launchers._kubernetes.runner.object_submission import Submission
from launchers._kubernetes.runner.torchx_session import TorchxSession
from launchers._kubernetes.runner.volume_command import run_beside
from launchers._kubernetes.state import job_result
from launchers._kubernetes.state.handles import Job, read_handle
from launchers._kubernetes.state.job_record import MANIFESTS, SUBMISSION, JobRecord, submission_bytes
from launchers._kubernetes.state.job_status import SOURCE, JobStatus

_CANCEL_AGAIN_S = 10.0
_UNREACHABLE_S = 2.0
# None: the cluster has nothing of the job.
_Found = JobStatus | DistTrainError | None


class KubernetesLauncher(Launcher):
    """The launcher `kubernetes`; its manifests can also be submitted by `kubectl apply -f -`."""

    name = "kubernetes"
    Options = Options
    # Values of --secret are in the cluster; this machine needs none.
    holds_secrets = True
    # The minimum for a plan; every path of this machine is then the same path in the image.
    example = Options(image="registry.example/train:1", run_volume="pvc/runs", source="/", workdir="/")

    def __init__(self) -> None:
        self._sessions: dict[str, TorchxSession] = {}
        self._paces: dict[str, Pace[_Found]] = {}
        self._cancelled_at: dict[str, float] = {}
        self._unreachable: dict[str | None, tuple[float, Unreachable]] = {}

    def plan(self, spec: JobSpec, options: BaseModel) -> Plan:
        """Render the manifests by TorchX's dry run; only kind volcano needs the Kubernetes client for it."""
        assert isinstance(options, Options)
        session = TorchxSession(
            _job(spec, options),
            lambda: Cluster.open(options.context, options.namespace),
            render=lambda rendered: render.manifests(rendered, spec, options),
        )
        manifests = session.manifests(app.app_of(spec, options), _torchx_options(options))
        owned = [f"{body['kind']}/{body['metadata']['name']}" for body in manifests[:-1]]
        return Plan(
            self.name,
            ((MANIFESTS, render.to_yaml(manifests)),),
            summary.summary(spec, options),
            ((SUBMISSION, submission_bytes(spec, options, owned)),),
            summary.notes(spec, options),
        )

    def submit(self, plan: Plan) -> JobHandle:
        """Create exactly the plan's objects; raises ConfigError and UnavailableError with a hint."""
        record = json.loads(plan.file(SUBMISSION))
        spec, options = JobSpec.from_json(record["spec"]), Options(**record["options"])
        job, manifests = _job(spec, options), render.from_yaml(plan.file(MANIFESTS))
        claim = options.claim[0] if options.claim is not None else None
        queue = options.queue if options.kueue else None
        submission = Submission(job, run_label(spec.run_id), spec.nodes, claim, spec.grace_s, queue)
        cluster = Cluster.open(options.context, options.namespace)
        TorchxSession(job, lambda: cluster, submission=submission).submit(
            app.app_of(spec, options), manifests
        )
        run = RunDir(spec.run_dir)
        JobRecord(run).start(cluster)
        self._forget(job.handle)
        append_event(run, "submitted", launcher=self.name, handle=job.handle.text, host=socket.gethostname())
        return job.handle

    def detach_output(self, handle: JobHandle) -> str:
        """What `--detach` prints: the name of the job object."""
        job = read_handle(handle)
        return handle.id if job is None else job.name

    def run_dir_on_nodes(self, spec: JobSpec) -> Path:
        """The run directory in the pods: on the run volume, which is not mounted here."""
        return Path(pod_paths.POD_RUN_ROOT) / spec.name

    def state(self, handle: JobHandle, run_dir: str) -> JobState:
        """Query the API server, less and less often while nothing changes."""
        job = read_handle(handle)
        if job is None:
            return JobState("unknown", "handle", f"{handle.text} is not kubernetes:KIND/NAMESPACE/NAME")
        record = _record(run_dir)
        self._session(handle, job, record).reads_restarts = True
        return self._status(handle, job, record).state

    def logs(
        self, handle: JobHandle, run_dir: str, rank: int | None, attempt: int | None, follow: bool
    ) -> Iterator[str]:
        """Yield the pods' output: of the rank's node, or of every node with its number as a prefix."""
        record = _record(run_dir)
        session = _open_session(_job_of(handle), record)
        try:
            if follow:
                yield from follow_logs(session, record.spec, rank)
            else:
                yield from read_logs(session, record.spec, rank, attempt)
        finally:
            session.close()

    def cancel(self, handle: JobHandle, run_dir: str) -> None:
        """Delete every object of the run: pods save and stop within their grace, and are not recreated."""
        job, record = read_handle(handle), _record(run_dir)
        if job is None:
            return
        self._session(handle, job, record).reads_restarts = False
        state = self._status(handle, job, record).state
        if state.phase == "unknown":
            raise UnavailableError(f"the state of job {job.name} is not known: {state.detail}")
        if state.phase not in ACTIVE_PHASES:
            return
        self._paces[handle.text].hurry()
        # Called repeatedly while the pods save; the deletion is requested again only now and then.
        if time.monotonic() - self._cancelled_at.get(handle.text, -_CANCEL_AGAIN_S) >= _CANCEL_AGAIN_S:
            self._session(handle, job, record).cancel()
            record.write_cancelled()
            self._cancelled_at[handle.text] = time.monotonic()

    def command_on_nodes(
        self, handle: JobHandle, run_dir: str, words: Sequence[str], timeout_s: float
    ) -> str:
        """The output of `python WORDS` in a pod of its own that has the run volume."""
        job, record = _job_of(handle), _record(run_dir)
        submitted = record.submission
        if submitted is None:
            raise NotFoundError(f"{run_dir} has no record of what was submitted")
        spec, options = submitted
        return run_beside(self._session(handle, job, record).cluster(), job, spec, options, words, timeout_s)

    def left_after_end(self, handle: JobHandle, run_dir: str) -> str:
        """The job object, which keeps the pods, their logs and all that it owns until --ttl."""
        job, record = read_handle(handle), _record(run_dir)
        if job is None:
            return ""
        try:
            if self._session(handle, job, record).cluster().get(job.api_kind, job.name) is None:
                return ""
        except DistTrainError:
            return ""
        remove = job.kubectl(f"delete {job.api_kind.full_name} {job.name}")
        until = "" if record.ttl is None else f" for {record.ttl} after the end (--ttl)"
        what = f"its {job.api_kind.kind} {job.name} and what belongs to it"
        return f"{what} stay in the cluster{until}; `{remove}` removes them"

    def wait(self, handle: JobHandle, run_dir: str) -> int:
        """Print node 0's log until the job ends; Ctrl-C raises Detached, and the job continues."""
        job, record = _job_of(handle), _record(run_dir)
        try:
            session = self._session(handle, job, record)
            session.reads_restarts = False
            follower = JobFollower(session, lambda: self._status(handle, job, record))
            end = follower.run()
        except KeyboardInterrupt:
            raise Detached from None
        finally:
            self._forget(handle)
        record.write_end(handle, end.state, end.verdict, end.more_memory)
        return exit_code_of(end.state)

    def _status(self, handle: JobHandle, job: Job, record: JobRecord) -> JobStatus:
        session = self._session(handle, job, record)
        pace = self._paces.setdefault(handle.text, _pace(lambda: self._query(session, record.server)))
        found = pace.ask(handle, (record.markers, session.pod_watch.count))
        if isinstance(found, DistTrainError):
            recorded = record.recorded_end(handle)
            return JobStatus(recorded or JobState("unknown", SOURCE, found.what))
        if found is None:
            verdict = job_result.newest_verdict(session.pod_watch.seen)
            return JobStatus(record.state_without_objects(handle, verdict), verdict)
        # The pods may be gone, and an earlier command may have recorded how they ended.
        if found.verdict is None and found.state.phase in ("failed", "stopped"):
            recorded = record.recorded_end(handle)
            return JobStatus(recorded) if recorded is not None else _with_resume(found, record)
        return _with_resume(found, record)

    def _query(self, session: TorchxSession, server: str | None) -> _Found:
        """Query the status; an error is returned, and kept for other runs on the same server (`list`)."""
        until, error = self._unreachable.get(server, (0.0, None))
        if error is not None and time.monotonic() < until:
            return error
        try:
            return session.status()
        except Unreachable as unreachable:
            self._unreachable[server] = (time.monotonic() + _UNREACHABLE_S, unreachable)
            return unreachable
        except Unauthorized as expired:
            session.reconnect()
            return expired
        except DistTrainError as other:
            return other

    def _session(self, handle: JobHandle, job: Job, record: JobRecord) -> TorchxSession:
        if handle.text not in self._sessions:
            self._sessions[handle.text] = _open_session(job, record)
        return self._sessions[handle.text]

    def _forget(self, handle: JobHandle) -> None:
        self._paces.pop(handle.text, None)
        self._cancelled_at.pop(handle.text, None)
        session = self._sessions.pop(handle.text, None)
        if session is not None:
            session.close()


def _with_resume(found: JobStatus, record: JobRecord) -> JobStatus:
    """Put `resume … --mem` first of what to run next, where the memory was not enough."""
    if not found.more_memory:
        return found
    commands = (record.resume_command(found.more_memory), *found.state.next)
    return replace(found, state=replace(found.state, next=commands))


def _pace(query: Callable[[], _Found]) -> Pace[_Found]:
    """Ask less and less often while the reason stays: its seconds and counts change all the time."""
    return Pace(lambda _: query(), same=_same)


def _same(one: _Found, other: _Found) -> bool:
    if isinstance(one, JobStatus) and isinstance(other, JobStatus):
        return one.kind == other.kind
    return one == other


def _record(run_dir: str) -> JobRecord:
    return JobRecord(RunDir(Path(run_dir)))


def _open_session(job: Job, record: JobRecord) -> TorchxSession:
    spec = record.spec
    label = None if spec is None else run_label(spec.run_id)
    return TorchxSession(job, lambda: record.open_cluster(job), run_label=label)


def _job_of(handle: JobHandle) -> Job:
    job = read_handle(handle)
    if job is None:
        raise NotFoundError(f"{handle.text} is no job: expected kubernetes:KIND/NAMESPACE/NAME")
    return job


def _job(spec: JobSpec, options: Options) -> Job:
    return Job(options.kind, options.namespace, object_name(spec), options.context)


def _torchx_options(options: Options) -> dict[str, str | None]:
    """The options as the TorchX scheduler of this kind names them."""
    if options.kind != "volcano":
        return {"namespace": options.namespace, "kind": options.kind}
    return {
        "namespace": options.namespace,
        "queue": volcano.queue_of(options),
        "service_account": options.service_account,
        "priority_class": options.priority_class,
    }


LAUNCHER = KubernetesLauncher()
