"""Our TorchX scheduler for plain clusters: Job, JobSet and TrainJob, by the API server alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream, filter_regex
from torchx.specs import AppDef, AppDryRunInfo, AppState, ReplicaStatus, Role, RoleStatus, runopts

from dist_train.jobs.launcher import Phase
from launchers._kubernetes.api.cluster import Body, Cluster
from launchers._kubernetes.api.kinds import JOB, JOB_SET, TRAIN_JOB, Kind
from launchers._kubernetes.api.refusals import MissingApi
from launchers._kubernetes.manifest.render import to_yaml
from launchers._kubernetes.runner import removal, submission
from launchers._kubernetes.runner.logs import NodeLog, read_log
from launchers._kubernetes.state.handles import Job, read_app_id
from launchers._kubernetes.state.news import News
from launchers._kubernetes.state.pods import Pod, newest_of_nodes
from launchers._kubernetes.state.sight import label_of_job, list_pods, look
from launchers._kubernetes.state.standing import Standing, standing
from launchers._kubernetes.state.top import Top, read_top

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


@dataclass(frozen=True)
class Work:
    """What a scheduler works with; the cluster is opened at its first use."""

    cluster: Callable[[], Cluster]
    news: News
    run_label: str | None = None
    render: Callable[[AppDef], list[Body]] | None = None
    terms: submission.Terms | None = None


class Verbs:
    """Every verb of a TorchX scheduler, for all of our kinds."""

    kinds: ClassVar[Mapping[str, Kind]]
    work: Work

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> AppDryRunInfo[list[Body]]:
        """The manifests; what the Runner has put into the app from this machine's files is taken out."""
        assert self.work.render is not None
        for role in app.roles:
            for name in [name for name in role.env if name.startswith("TORCHX_")]:
                del role.env[name]
        return AppDryRunInfo(self.work.render(app), lambda rendered: to_yaml(rendered).decode())

    def schedule(self, dryrun_info: AppDryRunInfo[list[Body]]) -> str:
        """Create every object in order."""
        assert self.work.terms is not None
        job = submission.create(self.work.cluster(), dryrun_info.request, self.work.terms)
        return job.app_id

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """The whole answer is in `structured_error_msg` (Standing.to_text); None: nothing is there."""
        job = read_app_id(app_id)
        sight = look(self.work.cluster(), job, self.work.run_label)
        found = standing(job, sight, self.work.news.seen)
        return None if found is None else _response(app_id, found, sight.pods, sight.top)

    def list(self) -> list[ListAppResponse]:
        """Every job of ours in the namespace."""
        cluster = self.work.cluster()
        found = []
        for name, kind in self.kinds.items():
            try:
                bodies = cluster.find(kind, _MANAGED).items
            except MissingApi:
                continue
            tops = [read_top(name, body) for body in bodies]
            found += [
                ListAppResponse(Job(name, cluster.namespace, top.name).app_id, _STAGES[top.stage])
                for top in tops
            ]
        return found

    def _cancel_existing(self, app_id: str) -> None:
        """Order the removal of everything; pods have their grace to save and stop."""
        removal.remove(self.work.cluster(), read_app_id(app_id), self.work.run_label)

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
        """Node `k`'s lines, from all its pods; one stream holds both stdout and stderr."""
        if streams not in (None, Stream.COMBINED):
            raise ValueError("Kubernetes keeps stdout and stderr together")
        job, cluster = read_app_id(app_id), self.work.cluster()

        label = self.work.run_label or label_of_job(cluster, job)

        def pods() -> list[Pod]:
            return list_pods(cluster, label)

        if should_tail:
            lines = NodeLog(cluster, pods, k, lambda: self._is_over(app_id), self.work.news).lines()
        else:
            lines = read_log(cluster, job, pods(), k, None)
        ended = (f"{line}\n" for line in lines)
        return ended if regex is None else filter_regex(regex, ended)

    def _is_over(self, app_id: str) -> bool:
        found = self.describe(app_id)
        return found is None or found.state in (AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED)


class PlainScheduler(Verbs, Scheduler[Mapping[str, Any]]):  # type: ignore[misc]
    """TorchX's interface over batch/v1 Jobs, JobSets and TrainJobs."""

    kinds: ClassVar[Mapping[str, Kind]] = {"job": JOB, "jobset": JOB_SET, "trainjob": TRAIN_JOB}

    def __init__(self, session_name: str, work: Work) -> None:
        super().__init__("dist_train", session_name)
        self.work = work

    def _run_opts(self) -> runopts:
        found = runopts()
        found.add("namespace", type_=str, help="Namespace of the job", default="default")
        found.add("kind", type_=str, help="job, jobset or trainjob", default="job")
        return found

    def _validate(self, app: AppDef, scheduler: str) -> None:
        """Options and sizes were checked when the app was made."""


def _response(app_id: str, found: Standing, pods: tuple[Pod, ...], top: Top | None) -> DescribeAppResponse:
    replicas = [
        ReplicaStatus(node, _pod_state(pod), "trainer", pod.host)
        for node, pod in newest_of_nodes(pods).items()
    ]
    return DescribeAppResponse(
        app_id=app_id,
        state=_STATES[found.state.phase],
        num_restarts=0 if top is None else top.restarts,
        msg=found.state.detail,
        structured_error_msg=found.to_text(),
        roles_statuses=[RoleStatus("trainer", replicas)],
        roles=[Role("trainer", "", num_replicas=len(replicas))],
    )


def _pod_state(pod: Pod) -> AppState:
    if pod.ended:
        return AppState.SUCCEEDED if pod.container.exit_code == 0 else AppState.FAILED
    return AppState.RUNNING if pod.container.running else AppState.PENDING
