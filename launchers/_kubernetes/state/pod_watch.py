"""Changes of a job's pods, by a watch: they end waits, and deleted pods are kept as they were last."""

from __future__ import annotations

import threading
import time

from dist_train.errors import DistTrainError, UnavailableError
from dist_train.jobs.polling import Backoff
from launchers._kubernetes.api.api_errors import Expired, Forbidden, MissingApi
from launchers._kubernetes.api.cluster import Cluster
from launchers._kubernetes.api.kinds import POD
from launchers._kubernetes.api.lasting_refusal import LastingRefusal
from launchers._kubernetes.manifest.names import RUN_LABEL
from launchers._kubernetes.state.pods import Pod, read_pod

# Back-off between two tries to reach an API server that does not respond.
RETRY_FIRST_S, RETRY_LONGEST_S = 1.0, 30.0


class PodWatch:
    """The pods as a watch saw them last, and a count of changes to wait on.

    Without `watch_pods` nothing is recorded, and every wait lasts for its whole time.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pods: dict[str, Pod] = {}
        self.count = 0
        self.stopped = False

    @property
    def seen(self) -> tuple[Pod, ...]:
        """Every pod that the watch has reported, as it was last."""
        with self._changed:
            return tuple(self._pods.values())

    def record(self, pod: Pod) -> None:
        """Record a pod that was created, has changed or was deleted."""
        with self._changed:
            if self._pods.get(pod.uid) != pod:
                self._pods[pod.uid] = pod
                self.count += 1
                self._changed.notify_all()

    def wait(self, since: int, seconds: float) -> bool:
        """Wait until there are more than `since` changes; False at the timeout and after `stop`."""
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


def watch_pods(cluster: Cluster, run_label: str, pod_watch: PodWatch) -> None:
    """Record every change of the run's pods until `pod_watch` is stopped; for a thread.

    After an expired version (410) the pods are listed again; an unreachable server is tried again with
    back-off, and so is a 403; after one that lasts, the thread ends.
    """
    selector = f"{RUN_LABEL}={run_label}"
    backoff, refusal = Backoff(RETRY_FIRST_S, RETRY_LONGEST_S), LastingRefusal()
    version = ""
    while not pod_watch.stopped:
        try:
            if not version:
                listing = cluster.find(POD, selector)
                for body in listing.items:
                    pod_watch.record(read_pod(body))
                version = listing.version
            version = _watch(cluster, selector, version, pod_watch)
            backoff.reset()
            refusal.reset()
        except Expired:
            version = ""
        except MissingApi:
            return
        except Forbidden:
            if refusal.believed():
                return
            pod_watch.wait(pod_watch.count, backoff.wait_s)
            backoff.grow()
        except UnavailableError:
            pod_watch.wait(pod_watch.count, backoff.wait_s)
            backoff.grow()
        except DistTrainError:
            return


def _watch(cluster: Cluster, selector: str, version: str, pod_watch: PodWatch) -> str:
    for kind, body in cluster.watch(POD, selector, version):
        version = str((body.get("metadata") or {}).get("resourceVersion") or version)
        if kind != "BOOKMARK":
            pod_watch.record(read_pod(body))
        if pod_watch.stopped:
            break
    return version
