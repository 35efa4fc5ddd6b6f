"""One job's verbs through TorchX's Python Runner, with our schedulers; no entry point is asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dist_train.errors import NotFoundError
from launchers._kubernetes.api.cluster import Body, Cluster
from launchers._kubernetes.manifest.app import ROLE
from launchers._kubernetes.runner.logs import read_log
from launchers._kubernetes.state.handles import Job
from launchers._kubernetes.state.news import News, watch_pods
from launchers._kubernetes.state.sight import label_of_job, list_pods
from launchers._kubernetes.state.standing import Standing

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchx.runner import Runner
    from torchx.specs import AppDef, CfgVal

    from launchers._kubernetes.runner.submission import Terms

NAME = "dist-train"
PLAIN, VOLCANO = "dist_train", "volcano"


class Session:
    """Everything that is asked of one job; threads of it end with `close`."""

    def __init__(
        self,
        job: Job,
        open_cluster: Callable[[], Cluster],
        run_label: str | None = None,
        render: Callable[[AppDef], list[Body]] | None = None,
        terms: Terms | None = None,
    ) -> None:
        self.job = job
        self.news = News()
        self._open = open_cluster
        self._cluster: Cluster | None = None
        self._opening = threading.Lock()
        self._run_label = run_label
        self._backend = VOLCANO if job.kind == "volcano" else PLAIN
        self._runner = self._make(render, terms)
        self._threads: list[threading.Thread] = []

    def _make(self, render: Callable[[AppDef], list[Body]] | None, terms: Terms | None) -> Runner:
        from torchx.runner import Runner

        from launchers._kubernetes.runner.scheduler import PlainScheduler, Work

        work = Work(self.cluster, self.news, self._run_label, render, terms)

        def plain(session_name: str, **_: Any) -> Any:  # the Runner also hands over TORCHX_* variables
            return PlainScheduler(session_name, work)

        def volcano(session_name: str, **_: Any) -> Any:
            from launchers._kubernetes.runner.volcano_scheduler import VolcanoScheduler

            return VolcanoScheduler(session_name, work)

        return Runner(NAME, {PLAIN: plain, VOLCANO: volcano})

    def cluster(self) -> Cluster:
        """Opened at the first use: a dry run needs none."""
        with self._opening:
            if self._cluster is None:
                self._cluster = self._open()
            return self._cluster

    def drop_cluster(self) -> None:
        """Read the kubeconfig anew at the next use: the credentials have expired."""
        with self._opening:
            self._cluster = None

    def manifests(self, app: AppDef, cfg: dict[str, CfgVal]) -> list[Body]:
        """TorchX's dry run."""
        found = self._runner.dryrun(app, self._backend, cfg).request
        assert isinstance(found, list)
        return found

    def submit(self, app: AppDef, manifests: list[Body]) -> None:
        """Create exactly these."""
        from torchx.specs import AppDryRunInfo

        info: AppDryRunInfo[list[Body]] = AppDryRunInfo(manifests, repr)
        info._app, info._scheduler = app, self._backend
        self._runner.schedule(info)

    def standing(self) -> Standing | None:
        """Where the job is; None where the cluster has nothing of it."""
        status = self._runner.status(self._handle)
        return None if status is None else Standing.from_text(status.structured_error_msg)

    def cancel(self) -> None:
        """Order the removal of all that there is."""
        self._runner.cancel(self._handle)

    def log_lines(self, node: int, follow: bool, attempt: int | None = None) -> Iterator[str]:
        """One node's lines; raises NotFoundError where the cluster has no pod of the job any more."""
        from torchx.specs import UnknownAppException

        if attempt is not None:  # which TorchX knows nothing of
            yield from self._lines_of(node, attempt)
            return
        try:
            lines = self._runner.log_lines(self._handle, ROLE, k=node, should_tail=follow)
        except UnknownAppException:
            raise gone(self.job) from None
        for line in lines:
            yield line.removesuffix("\n")

    def _lines_of(self, node: int, attempt: int) -> Iterator[str]:
        cluster = self.cluster()
        label = self._run_label or label_of_job(cluster, self.job)
        return read_log(cluster, self.job, list_pods(cluster, label), node, attempt)

    def watch(self) -> None:
        """Note what happens to the pods from now on, in a thread."""
        if self._run_label is None or any(thread.name == "pod-watch" for thread in self._threads):
            return
        arguments = (self.cluster(), self._run_label, self.news)
        thread = threading.Thread(target=watch_pods, args=arguments, name="pod-watch", daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """End what waits and what reads."""
        self.news.stop()
        if self._cluster is not None:
            self._cluster.hang_up()
        for thread in self._threads:
            thread.join(2.0)
        self._threads.clear()
        self._runner.close()

    @property
    def _handle(self) -> str:
        return f"{self._backend}://{NAME}/{self.job.app_id}"


def gone(job: Job) -> NotFoundError:
    """There is nothing to read any more."""
    return NotFoundError(
        f"the cluster has no pod of {job.top.kind} {job.name} in namespace {job.namespace} any more",
        cause="it was cancelled, or removed after its end (--ttl)",
        mend="its logs are on the run volume, below logs/ of the run's directory there",
    )
