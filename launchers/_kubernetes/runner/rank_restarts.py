"""How often the ranks of a running job were started again: by its agents' lines in the log of one pod.

The API has the restarts of pods alone. A rank that was started again within its pod leaves no trace there,
and neither does a pod that was drained: it is deleted, and its successor is the first one of its name.
"""

from __future__ import annotations

from collections.abc import Iterable

from dist_train.errors import DistTrainError
from dist_train.rundir.attempt_lines import count_restarts
from launchers._kubernetes.api.cluster import Cluster
from launchers._kubernetes.runner.pod_logs import log_of_pod
from launchers._kubernetes.state.pods import Pod, newest_generation


def rank_restarts(cluster: Cluster, pods: Iterable[Pod]) -> int:
    """Count the restarts since the submission; 0 where no log can be read. All nodes restart together."""
    for pod in newest_generation(pods):
        # The log of a pod on a dead machine is waited for.
        if pod.started and not pod.deleting and not pod.host_unresponsive:
            try:
                return count_restarts(log_of_pod(cluster, pod))
            except DistTrainError:
                continue
    return 0
