"""Kubernetes: one agent per pod, by TorchX's Runner and schedulers of ours; Job, JobSet, Volcano, TrainJob.

Nothing depends on the shell that launched, nor on a sight of the run volume: every verb asks the API
server anew, and the agents' last word is in their pods' status.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from dist_train.errors import DistTrainError, NotFoundError, UnavailableError
from dist_train.jobs import JobHandle, JobSpec, JobState, Plan
from dist_train.jobs.launcher import Detached
from dist_train.jobs.pace import Pace
from dist_train.rundir import RunDir
from dist_train.rundir.events import append_event
from launchers._kubernetes.api.cluster import Cluster
from launchers._kubernetes.api.refusals import NotAuthenticated, Unreachable
from launchers._kubernetes.follow.follow import AT_WORK, Follower, code_of
from launchers._kubernetes.follow.tailing import follow_all, read_all
from launchers._kubernetes.manifest import app, places, render, summary, volcano
from launchers._kubernetes.manifest.names import object_name, run_label
from launchers._kubernetes.manifest.options import Options
from launchers._kubernetes.runner.session import Session
from launchers._kubernetes.runner.submission import Terms
from launchers._kubernetes.state import ending
from launchers._kubernetes.state.handles import Job, read_handle
from launchers._kubernetes.state.record import MANIFESTS, SUBMISSION, Record, submission_bytes
from launchers._kubernetes.state.standing import SOURCE, Standing

_ORDER_AGAIN_S = 10.0
_AWAY_S = 2.0


class KubernetesLauncher:
    """Submits manifests that `kubectl apply -f -` takes as well."""

    name = "kubernetes"
    Options = Options
    # Values of --secret are in the cluster; this machine needs none.
    holds_secrets = True
    # The least that a plan needs; with it every path of this machine is the same path in the image.
    example = Options(image="registry.example/train:1", run_volume="pvc/runs", source="/", workdir="/")

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._paces: dict[str, Pace[Standing | DistTrainError | None]] = {}
        self._ordered: dict[str, float] = {}
        self._away: dict[str | None, tuple[float, Unreachable]] = {}

    def plan(self, spec: JobSpec, options: BaseModel) -> Plan:
        """The manifests, by TorchX's dry run; kind volcano alone needs the Kubernetes client for it."""
        assert isinstance(options, Options)
        session = Session(
            _job(spec, options),
            lambda: Cluster.open(options.context, options.namespace),
            render=lambda made: render.manifests(made, spec, options),
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
        """Create exactly the plan's objects; raises ConfigError and UnavailableError with the mend."""
        told = json.loads(plan.file(SUBMISSION))
        spec, options = JobSpec.from_json(told["spec"]), Options(**told["options"])
        job, manifests = _job(spec, options), render.from_yaml(plan.file(MANIFESTS))
        claim = options.claim[0] if options.claim is not None else None
        queue = options.queue if options.kind != "volcano" else None
        terms = Terms(job, run_label(spec.run_id), spec.nodes, claim, spec.grace_s, queue)
        cluster = Cluster.open(options.context, options.namespace)
        Session(job, lambda: cluster, terms=terms).submit(app.app_of(spec, options), manifests)
        run = RunDir(spec.run_dir)
        Record(run).begin(cluster)
        self._forget(job.handle)
        append_event(run, "submitted", launcher=self.name, handle=job.handle.text, host=socket.gethostname())
        return job.handle

    def detached_word(self, handle: JobHandle) -> str:
        """What `--detach` prints: the object's name alone."""
        job = read_handle(handle)
        return handle.id if job is None else job.name

    def run_dir_on_nodes(self, spec: JobSpec) -> Path:
        """Where the pods have the run: on the run volume, which nobody sees from here."""
        return Path(places.POD_RUN_ROOT) / spec.name

    def state(self, handle: JobHandle, run_dir: str) -> JobState:
        """Asks the API server, ever more seldom while nothing changes."""
        job = read_handle(handle)
        if job is None:
            return JobState("unknown", "handle", f"{handle.text} is not kubernetes:KIND/NAMESPACE/NAME")
        return self._standing(handle, job, _record(run_dir)).state

    def logs(
        self, handle: JobHandle, run_dir: str, rank: int | None, attempt: int | None, follow: bool
    ) -> Iterator[str]:
        """What the pods have printed: of the rank's node, or of every node behind its number."""
        own = _record(run_dir)
        session = _open(_known(handle), own)
        try:
            if follow:
                yield from follow_all(session, own.spec, rank)
            else:
                yield from read_all(session, own.spec, rank, attempt)
        finally:
            session.close()

    def cancel(self, handle: JobHandle, run_dir: str) -> None:
        """Delete everything of the run: pods save and stop within their grace, and none comes again."""
        job, own = read_handle(handle), _record(run_dir)
        if job is None:
            return
        state = self._standing(handle, job, own).state
        if state.phase == "unknown":
            raise UnavailableError(f"where job {job.name} is cannot be told: {state.detail}")
        if state.phase not in AT_WORK:
            return
        self._paces[handle.text].hurry()
        # Asked for again and again while the pods save: ordered anew only now and then.
        if time.monotonic() - self._ordered.get(handle.text, -_ORDER_AGAIN_S) >= _ORDER_AGAIN_S:
            self._session(handle, job, own).cancel()
            own.cancelled()
            self._ordered[handle.text] = time.monotonic()

    def wait(self, handle: JobHandle, run_dir: str) -> int:
        """Show what node 0 shows until the job ends; Ctrl-C raises Detached, and the job goes on."""
        job, own = _known(handle), _record(run_dir)
        try:
            follower = Follower(self._session(handle, job, own), lambda: self._standing(handle, job, own))
            end = follower.run()
        except KeyboardInterrupt:
            raise Detached from None
        finally:
            self._forget(handle)
        own.ended(handle, end.state, end.verdict)
        return code_of(end.state)

    def _standing(self, handle: JobHandle, job: Job, own: Record) -> Standing:
        session = self._session(handle, job, own)
        pace = self._paces.setdefault(handle.text, Pace(lambda _: self._ask(session, own.server)))
        answer = pace.ask(handle, (own.happened, session.news.count))
        if isinstance(answer, DistTrainError):
            settled = own.seen_end(handle)
            return Standing(settled or JobState("unknown", SOURCE, answer.what))
        if answer is None:
            told = ending.verdict(session.news.seen)
            return Standing(own.without_objects(handle, told), told)
        # Pods that are gone by now have told a command of ours how they ended.
        if answer.verdict is None and answer.state.phase in ("failed", "stopped"):
            return Standing(own.seen_end(handle) or answer.state)
        return answer

    def _ask(self, session: Session, server: str | None) -> Standing | DistTrainError | None:
        """A query that failed is an answer too, for other runs on the same server as well (`list`)."""
        until, error = self._away.get(server, (0.0, None))
        if error is not None and time.monotonic() < until:
            return error
        try:
            return session.standing()
        except Unreachable as away:
            self._away[server] = (time.monotonic() + _AWAY_S, away)
            return away
        except NotAuthenticated as expired:
            session.drop_cluster()
            return expired
        except DistTrainError as other:
            return other

    def _session(self, handle: JobHandle, job: Job, own: Record) -> Session:
        if handle.text not in self._sessions:
            self._sessions[handle.text] = _open(job, own)
        return self._sessions[handle.text]

    def _forget(self, handle: JobHandle) -> None:
        self._paces.pop(handle.text, None)
        self._ordered.pop(handle.text, None)
        session = self._sessions.pop(handle.text, None)
        if session is not None:
            session.close()


def _record(run_dir: str) -> Record:
    return Record(RunDir(Path(run_dir)))


def _open(job: Job, own: Record) -> Session:
    spec = own.spec
    label = None if spec is None else run_label(spec.run_id)
    return Session(job, lambda: own.reopen(job), run_label=label)


def _known(handle: JobHandle) -> Job:
    job = read_handle(handle)
    if job is None:
        raise NotFoundError(f"{handle.text} is no job: expected kubernetes:KIND/NAMESPACE/NAME")
    return job


def _job(spec: JobSpec, options: Options) -> Job:
    return Job(options.kind, options.namespace, object_name(spec), options.context)


def _torchx_options(options: Options) -> dict[str, str | None]:
    """What the TorchX scheduler of this kind calls its options."""
    if options.kind != "volcano":
        return {"namespace": options.namespace, "kind": options.kind}
    return {
        "namespace": options.namespace,
        "queue": volcano.queue_of(options),
        "service_account": options.service_account,
        "priority_class": options.priority_class,
    }


LAUNCHER = KubernetesLauncher()
