"""`logs -f` of N nodes: their followers ask once a moment, and not N times."""

from __future__ import annotations

import pytest
from kubernetes_bodies import pod
from kubernetes_stand_ins import PODS, Api, put

from dist_train.rundir import RunDir
from launchers._kubernetes.api.api_errors import Unreachable
from launchers._kubernetes.api.cluster import Cluster
from launchers._kubernetes.runner import recent_answer
from launchers._kubernetes.runner.recent_answer import FRESH_S, RecentAnswer
from launchers._kubernetes.runner.scheduler import PlainScheduler, SchedulerInputs
from launchers._kubernetes.state.handles import Job
from launchers._kubernetes.state.pod_watch import PodWatch
from launchers._kubernetes.state.pods import read_pod

pytestmark = pytest.mark.filterwarnings("ignore:HTTPResponse:DeprecationWarning")


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(recent_answer, "time", made)
    return made


def test_it_asks_again_after_a_moment_and_after_a_change(clock: Clock) -> None:
    asked, changes = list[int](), [0]

    def ask() -> int:
        asked.append(len(asked))
        return asked[-1]

    answer = RecentAnswer(ask, lambda: changes[0])
    assert [answer.get() for _ in range(1000)] == [0] * 1000
    changes[0] += 1
    assert [answer.get() for _ in range(1000)] == [1] * 1000
    clock.now += FRESH_S
    assert answer.get() == 2


def test_an_error_is_an_answer_too(clock: Clock) -> None:
    asked = list[int]()

    def ask() -> int:
        asked.append(1)
        raise Unreachable("away")

    answer = RecentAnswer(ask, lambda: 0)
    for _ in range(3):
        with pytest.raises(Unreachable, match="away"):
            answer.get()
    assert len(asked) == 1


def test_the_followers_of_all_nodes_share_one_list(api: Api, submitted: RunDir, clock: Clock) -> None:
    """Each listed all pods by itself: 1,000 lists of 1,000 pods a round."""
    put(api, *(pod(name, node) for node, name in enumerate("ab")))
    watch, cluster = PodWatch(), Cluster.open(None, "default")
    scheduler = PlainScheduler("s", SchedulerInputs(lambda: cluster, watch, "digits-1f"))
    app_id = Job("job", "default", "digits").app_id
    before = api.paths("GET").count(PODS)
    followed = [scheduler._shared_answers(app_id)[0] for _ in range(5)]
    assert len({tuple(found.name for found in pods.get()) for pods in followed}) == 1
    assert api.paths("GET").count(PODS) == before + 1
    watch.record(read_pod(pod("c", 2)))
    for pods in followed:
        pods.get()
    assert api.paths("GET").count(PODS) == before + 2
