"""What happens to a job's pods, by a watch: it wakes those who wait, and remembers pods that are deleted."""

from __future__ import annotations

import threading
import time

from dist_train.errors import DistTrainError, UnavailableError
from dist_train.jobs.pace import Backoff
from launchers._kubernetes.api.cluster import Cluster
from launchers._kubernetes.api.kinds import POD
from launchers._kubernetes.api.refusals import Expired, Forbidden, MissingApi
from launchers._kubernetes.manifest.names import RUN_LABEL
from launchers._kubernetes.state.pods import Pod, read_pod

# Between two tries to reach an API server that does not answer.
RETRY_FIRST_S, RETRY_LONGEST_S = 1.0, 30.0


class News:
    """Counts what has happened. Without a watch nothing ever happens, and waits last as long as they may."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pods: dict[str, Pod] = {}
        self.count = 0
        self.stopped = False

    @property
    def seen(self) -> tuple[Pod, ...]:
        """Every pod that the watch has told of, as it was last."""
        with self._changed:
            return tuple(self._pods.values())

    def note(self, pod: Pod) -> None:
        """A pod was made, has changed or is gone."""
        with self._changed:
            if self._pods.get(pod.uid) != pod:
                self._pods[pod.uid] = pod
                self.count += 1
                self._changed.notify_all()

    def wait(self, since: int, seconds: float) -> bool:
        """Until more than `since` has happened; False when the time is over or nobody listens any more."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self.count <= since and not self.stopped:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
            return not self.stopped

    def stop(self) -> None:
        """End every wait, now and later."""
        with self._changed:
            self.stopped = True
            self._changed.notify_all()


def watch_pods(cluster: Cluster, run_label: str, news: News) -> None:
    """Note every change of the run's pods until the news are stopped; for a thread.

    An expired version (410) begins with a list again; a server that is away is tried again, ever more
    seldom; who may not watch goes without.
    """
    selector = f"{RUN_LABEL}={run_label}"
    backoff = Backoff(RETRY_FIRST_S, RETRY_LONGEST_S)
    version = ""
    while not news.stopped:
        try:
            if not version:
                listing = cluster.find(POD, selector)
                for body in listing.items:
                    news.note(read_pod(body))
                version = listing.version
            version = _watch(cluster, selector, version, news)
            backoff.reset()
        except Expired:
            version = ""
        except (Forbidden, MissingApi):
            return
        except UnavailableError:
            news.wait(news.count, backoff.wait_s)
            backoff.grow()
        except DistTrainError:
            return


def _watch(cluster: Cluster, selector: str, version: str, news: News) -> str:
    for kind, body in cluster.watch(POD, selector, version):
        version = str((body.get("metadata") or {}).get("resourceVersion") or version)
        if kind != "BOOKMARK":
            news.note(read_pod(body))
        if news.stopped:
            break
    return version
