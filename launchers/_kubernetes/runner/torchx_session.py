"""One job through TorchX's Python Runner with our schedulers, which are passed in, not entry points."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dist_train.errors import NotFoundError
from launchers._kubernetes.api.cluster import Cluster
from launchers._kubernetes.api.kinds import Body
from launchers._kubernetes.manifest.app import ROLE
from launchers._kubernetes.runner.pod_logs import read_log
from launchers._kubernetes.state.handles import Job
from launchers._kubernetes.state.job_snapshot import label_of_job, list_pods
from launchers._kubernetes.state.job_status import JobStatus
from launchers._kubernetes.state.pod_watch import PodWatch, watch_pods

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx.runner import Runner
    from torchx.specs import AppDef, CfgVal

    from launchers._kubernetes.runner.object_submission import Submission

NAME = "dist-train"
PLAIN, VOLCANO = "dist_train", "volcano"


class TorchxSession:
    """Submit, status, logs and cancel of one job; `close` ends its threads."""

    def __init__(
        self,
        job: Job,
        open_cluster: Callable[[], Cluster],
        run_label: str | None = None,
        render: Callable[[AppDef], list[Body]] | None = None,
        submission: Submission | None = None,
    ) -> None:
        self.job = job
        self.pod_watch = PodWatch()
        # `status` counts restarts of ranks by a pod's log, which may be long.
        self.reads_restarts = False
        self._open = open_cluster
        self._cluster: Cluster | None = None
        self._opening = threading.Lock()
        self._run_label = run_label
        self._backend = VOLCANO if job.kind == "volcano" else PLAIN
        self._runner = self._make(render, submission)
        self._threads: list[threading.Thread] = []

    def _make(self, render: Callable[[AppDef], list[Body]] | None, submission: Submission | None) -> Runner:
        from torchx.runner import Runner

        from launchers._kubernetes.runner.scheduler import PlainScheduler, SchedulerInputs

        inputs = SchedulerInputs(
            self.cluster, self.pod_watch, self._run_label, lambda: self.reads_restarts, render, submission
        )

        def plain(session_name: str, **_: Any) -> Any:  # the Runner also hands over TORCHX_* variables
            return PlainScheduler(session_name, inputs)

        def volcano(session_name: str, **_: Any) -> Any:
            from launchers._kubernetes.runner.volcano_scheduler import VolcanoScheduler

            return VolcanoScheduler(session_name, inputs)

        return Runner(NAME, {PLAIN: plain, VOLCANO: volcano})

    def cluster(self) -> Cluster:
        """Connect at the first use: a dry run needs no cluster."""
        with self._opening:
            if self._cluster is None:
                self._cluster = self._open()
            return self._cluster

    def reconnect(self) -> None:
        """Read the kubeconfig again at the next use: the credentials have expired."""
        with self._opening:
            self._cluster = None

    def manifests(self, app: AppDef, cfg: dict[str, CfgVal]) -> list[Body]:
        """Render the manifests by TorchX's dry run."""
        found = self._runner.dryrun(app, self._backend, cfg).request
        assert isinstance(found, list)
        return found

    def submit(self, app: AppDef, manifests: list[Body]) -> None:
        """Create exactly these objects."""
        from torchx.specs import AppDryRunInfo

        info: AppDryRunInfo[list[Body]] = AppDryRunInfo(manifests, repr)
        info._app, info._scheduler = app, self._backend
        self._runner.schedule(info)

    def status(self) -> JobStatus | None:
        """Read the job's status; None where the cluster has nothing of it."""
        found = self._runner.status(self._handle)
        return None if found is None else JobStatus.from_text(found.structured_error_msg)

    def cancel(self) -> None:
        """Request the deletion of every object of the job."""
        self._runner.cancel(self._handle)

    def log_lines(self, node: int, follow: bool, attempt: int | None = None) -> Iterator[str]:
        """Yield one node's lines; raises NotFoundError where the cluster has no pod of the job any more."""
        from torchx.specs import UnknownAppException

        if attempt is not None:  # TorchX has no attempts
            yield from self._lines_of(node, attempt)
            return
        try:
            lines = self._runner.log_lines(self._handle, ROLE, k=node, should_tail=follow)
        except UnknownAppException:
            raise no_pods(self.job) from None
        for line in lines:
            yield line.removesuffix("\n")

    def _lines_of(self, node: int, attempt: int) -> Iterator[str]:
        cluster = self.cluster()
        label = self._run_label or label_of_job(cluster, self.job)
        return read_log(cluster, self.job, list_pods(cluster, label), node, attempt)

    def watch(self) -> None:
        """Record changes of the pods from now on, in a thread."""
        if self._run_label is None or any(thread.name == "pod-watch" for thread in self._threads):
            return
        arguments = (self.cluster(), self._run_label, self.pod_watch)
        thread = threading.Thread(target=watch_pods, args=arguments, name="pod-watch", daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """End waits, streams and threads."""
        self.pod_watch.stop()
        if self._cluster is not None:
            self._cluster.close_streams()
        for thread in self._threads:
            thread.join(2.0)
        self._threads.clear()
        self._runner.close()

    @property
    def _handle(self) -> str:
        return f"{self._backend}://{NAME}/{self.job.app_id}"


def no_pods(job: Job) -> NotFoundError:
    """The error for a job of which no pod exists any more."""
    return NotFoundError(
        f"the cluster has no pod of {job.api_kind.kind} {job.name} in namespace {job.namespace} any more",
        cause="it was cancelled, or removed after its end (--ttl)",
        hint="its logs are on the run volume, below logs/ of the run's directory there",
    )
