"""TorchX schedulers: the methods that all kinds share, and the scheduler for Job, JobSet and TrainJob."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream, filter_regex
from torchx.specs import AppDef, AppDryRunInfo, AppState, ReplicaStatus, Role, RoleStatus, runopts

from dist_train.jobs.launcher import Phase
from launchers._kubernetes.api.api_errors import MissingApi
from launchers._kubernetes.api.cluster import Cluster
from launchers._kubernetes.api.kinds import JOB, JOB_SET, TRAIN_JOB, Body, Kind
from launchers._kubernetes.manifest.render import to_yaml
from launchers._kubernetes.runner import object_submission, removal
from launchers._kubernetes.runner.pod_logs import NodeLogFollower, read_log
from launchers._kubernetes.runner.rank_restarts import rank_restarts
from launchers._kubernetes.runner.recent_answer import RecentAnswer
from launchers._kubernetes.state.handles import Job, read_app_id
from launchers._kubernetes.state.job_object import JobObject, read_job_object
from launchers._kubernetes.state.job_snapshot import label_of_job, list_pods, take_snapshot
from launchers._kubernetes.state.job_status import JobStatus, status_of
from launchers._kubernetes.state.pod_watch import PodWatch
from launchers._kubernetes.state.pods import Pod, newest_of_nodes

_MANAGED = "app.kubernetes.io/managed-by=dist-train"
_STATES: dict[Phase, AppState] = {
    "pending": AppState.PENDING,
    "requeued": AppState.PENDING,
    "running": AppState.RUNNING,
    "done": AppState.SUCCEEDED,
    "failed": AppState.FAILED,
    "stopped": AppState.CANCELLED,
    "unknown": AppState.UNKNOWN,
}
_STAGES = {
    "active": AppState.RUNNING,
    "suspended": AppState.PENDING,
    "complete": AppState.SUCCEEDED,
    "failed": AppState.FAILED,
    "aborted": AppState.CANCELLED,
}

# The pods of a job, and whether it is over.
_Answers = tuple[RecentAnswer[list[Pod]], RecentAnswer[bool]]


@dataclass(frozen=True)
class SchedulerInputs:
    """What a scheduler needs; the cluster is connected at its first use."""

    cluster: Callable[[], Cluster]
    pod_watch: PodWatch
    run_label: str | None = None
    # Whether to count restarts by a pod's log: who follows the job reads their lines anyway.
    reads_restarts: Callable[[], bool] = lambda: False
    render: Callable[[AppDef], list[Body]] | None = None
    submission: object_submission.Submission | None = None
    # By app id; of the followers of several nodes.
    shared: dict[str, _Answers] = field(default_factory=dict)
    sharing: threading.Lock = field(default_factory=threading.Lock)


class SchedulerMixin:
    """The methods of a TorchX scheduler, the same for every `--kind`."""

    kinds: ClassVar[Mapping[str, Kind]]
    inputs: SchedulerInputs

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> AppDryRunInfo[list[Body]]:
        """Render the manifests, without the variables that the Runner has added from this machine's files."""
        assert self.inputs.render is not None
        for role in app.roles:
            for name in [name for name in role.env if name.startswith("TORCHX_")]:
                del role.env[name]
        return AppDryRunInfo(self.inputs.render(app), lambda rendered: to_yaml(rendered).decode())

    def schedule(self, dryrun_info: AppDryRunInfo[list[Body]]) -> str:
        """Create every object of the request."""
        assert self.inputs.submission is not None
        job = object_submission.create(self.inputs.cluster(), dryrun_info.request, self.inputs.submission)
        return job.app_id

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Read the status; all of it is in `structured_error_msg` (JobStatus.to_text). None: no such job."""
        job = read_app_id(app_id)
        cluster = self.inputs.cluster()
        snapshot = take_snapshot(cluster, job, self.inputs.run_label)
        restarts = rank_restarts(cluster, snapshot.pods) if self.inputs.reads_restarts() else 0
        found = status_of(job, snapshot, self.inputs.pod_watch.seen, restarts)
        return None if found is None else _response(app_id, found, snapshot.pods, snapshot.job_object)

    def list(self) -> list[ListAppResponse]:
        """List every job of dist-train in the namespace."""
        cluster = self.inputs.cluster()
        found = []
        for name, kind in self.kinds.items():
            try:
                bodies = cluster.find(kind, _MANAGED).items
            except MissingApi:
                continue
            jobs = [read_job_object(name, body) for body in bodies]
            found += [
                ListAppResponse(
                    Job(name, cluster.namespace, job_object.name).app_id, _STAGES[job_object.stage]
                )
                for job_object in jobs
            ]
        return found

    def _cancel_existing(self, app_id: str) -> None:
        """Request the deletion of everything; pods save and stop within their grace."""
        removal.remove(self.inputs.cluster(), read_app_id(app_id), self.inputs.run_label)

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """Yield the lines of node `k`, from all its pods; stdout and stderr are one stream."""
        if streams not in (None, Stream.COMBINED):
            raise ValueError("Kubernetes has stdout and stderr in one stream")
        job, cluster = read_app_id(app_id), self.inputs.cluster()
        if should_tail:
            pods, over = self._shared_answers(app_id)
            lines = NodeLogFollower(cluster, pods.get, k, over.get, self.inputs.pod_watch).lines()
        else:
            label = self.inputs.run_label or label_of_job(cluster, job)
            lines = read_log(cluster, job, list_pods(cluster, label), k, None)
        ended = (f"{line}\n" for line in lines)
        return ended if regex is None else filter_regex(regex, ended)

    def _shared_answers(self, app_id: str) -> _Answers:
        """The pods, and whether the job is over: the same for the followers of all nodes."""
        inputs, cluster = self.inputs, self.inputs.cluster()
        with inputs.sharing:
            if app_id not in inputs.shared:
                label = inputs.run_label or label_of_job(cluster, read_app_id(app_id))

                def changes() -> int:
                    return inputs.pod_watch.count

                inputs.shared[app_id] = (
                    RecentAnswer(lambda: list_pods(cluster, label), changes),
                    RecentAnswer(lambda: self._is_over(app_id), changes),
                )
            return inputs.shared[app_id]

    def _is_over(self, app_id: str) -> bool:
        found = self.describe(app_id)
        return found is None or found.state in (AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED)


class PlainScheduler(SchedulerMixin, Scheduler[Mapping[str, Any]]):  # type: ignore[misc]
    """TorchX scheduler for batch/v1 Jobs, JobSets and TrainJobs; needs no client of an operator."""

    kinds: ClassVar[Mapping[str, Kind]] = {"job": JOB, "jobset": JOB_SET, "trainjob": TRAIN_JOB}

    def __init__(self, session_name: str, inputs: SchedulerInputs) -> None:
        super().__init__("dist_train", session_name)
        self.inputs = inputs

    def _run_opts(self) -> runopts:
        found = runopts()
        found.add("namespace", type_=str, help="Namespace of the job", default="default")
        found.add("kind", type_=str, help="job, jobset or trainjob", default="job")
        return found

    def _validate(self, app: AppDef, scheduler: str) -> None:
        """Do nothing: options and sizes are checked when the app is created."""


def _response(
    app_id: str, found: JobStatus, pods: tuple[Pod, ...], job_object: JobObject | None
) -> DescribeAppResponse:
    replicas = [
        ReplicaStatus(node, _pod_state(pod), "trainer", pod.host)
        for node, pod in newest_of_nodes(pods).items()
    ]
    return DescribeAppResponse(
        app_id=app_id,
        state=_STATES[found.state.phase],
        num_restarts=0 if job_object is None else job_object.restarts,
        msg=found.state.detail,
        structured_error_msg=found.to_text(),
        roles_statuses=[RoleStatus("trainer", replicas)],
        roles=[Role("trainer", "", num_replicas=len(replicas))],
    )


def _pod_state(pod: Pod) -> AppState:
    if pod.ended:
        return AppState.SUCCEEDED if pod.container.exit_code == 0 else AppState.FAILED
    return AppState.RUNNING if pod.container.running else AppState.PENDING
