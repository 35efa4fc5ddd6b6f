"""A state whose text changes all the time is one state: printed and queried less and less often."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kubernetes_bodies import Body, event, running
from kubernetes_stand_ins import DIGITS, EVENTS, JOBS, Api, put

from dist_train.jobs import JobState
from dist_train.jobs import polling as pace_module
from dist_train.rundir import RunDir
from launchers._kubernetes.follow.printed_states import PrintedStates
from launchers._kubernetes.state.reason_kind import reason_kind
from launchers.kubernetes import KubernetesLauncher

pytestmark = pytest.mark.filterwarnings("ignore:HTTPResponse:DeprecationWarning")
QUOTA = (
    'FailedCreate: Error creating: pods "digits-{}-{}" is forbidden: exceeded quota: team, '
    "requested: limits.cpu=2, used: limits.cpu={}, limited: limits.cpu=8"
)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            "pod a: stuck Terminating: its grace ended 61 s ago",
            "pod a: stuck Terminating: its grace ended 63 s ago",
        ),
        (QUOTA.format(0, "x7k2p", 8), QUOTA.format(1, "zb9wq", 7)),
        (
            "no machine fits: 0/3 nodes are available: 3 Insufficient cpu.",
            "no machine fits: 0/4 nodes are available: 4 Insufficient cpu.",
        ),
        ("back-off 10s restarting failed container", "back-off 1m20s restarting failed container"),
        (
            "Preempted by job (UID: 0d5ad3b2-7a0e-4a3e-9c51-0f6a4f4d2b11)",
            "Preempted by job (UID: 6f1c2c44-9d1e-4d4b-8c93-2f0f3a1be0aa)",
        ),
    ],
)
def test_texts_of_one_kind(first: str, second: str) -> None:
    assert reason_kind(first) == reason_kind(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("on gpu-1, gpu-2", "on gpu-1, gpu-3"),
        ("pod a: exit code 137", "pod a: exit code 139"),
        ("FailedCreate: exceeded quota: team", "FailedCreate: violates PodSecurity"),
        ("pod digits-0-x7k2p: running", "pod other-0-x7k2p: running"),
    ],
)
def test_texts_of_two_kinds(first: str, second: str) -> None:
    assert reason_kind(first) != reason_kind(second)


class TestPrinted:
    @pytest.fixture
    def lines(self) -> PrintedStates:
        return PrintedStates("digits")

    def at(self, second: float, detail: str, phase: str = "pending") -> tuple[JobState, float]:
        return JobState(phase, "API server", detail), second  # type: ignore[arg-type]

    def test_seconds_in_the_text_are_printed_again_at_doubling_intervals(self, lines: PrintedStates) -> None:
        printed = [
            second
            for second in range(0, 3600, 2)
            if lines.line(*self.at(second, f"pod a: stuck: its grace ended {second} s ago"))
        ]
        assert printed == [0, 30, 90, 210, 450, 930, 1890]

    def test_each_event_of_a_fresh_pod_is_one_state(self, lines: PrintedStates) -> None:
        """The events of two nodes alternate."""
        names = ("x7k2p", "zb9wq", "c4dfg", "tt2mm")
        texts = [QUOTA.format(turn % 2, names[turn % 4], 8) for turn in range(15)]
        assert [n for n, text in enumerate(texts) if lines.line(*self.at(2 * n, text))] == [0]

    def test_two_texts_that_alternate(self, lines: PrintedStates) -> None:
        texts = ("ErrImagePull", "ImagePullBackOff")
        printed = [n for n in range(100) if lines.line(*self.at(n, texts[n % 2]))]
        assert printed == [0, 1, 30, 31, 90, 91]

    def test_an_unchanged_text_is_printed_once(self, lines: PrintedStates) -> None:
        assert lines.line(*self.at(0, "waits")) == "job digits is pending: waits"
        assert not any(lines.line(*self.at(second, "waits")) for second in range(1, 1000, 7))

    def test_a_new_phase_is_printed_at_once(self, lines: PrintedStates) -> None:
        phases = ("running", "requeued") * 3
        assert all(lines.line(*self.at(n, "on gpu-1", phase)) for n, phase in enumerate(phases))

    def test_the_next_command_and_success(self, lines: PrintedStates) -> None:
        state, now = self.at(0, "held")
        assert lines.line(replace(state, next=("kubectl x",)), now) == (
            "job digits is pending: held  (kubectl x)"
        )
        assert lines.line(JobState("done", "API server", "", 0), 1) is None


class TestQueries:
    """How often the API server is asked for a job that is stuck, over ten minutes of a test's clock."""

    @pytest.mark.parametrize("trouble", ["stuck", "quota"])
    def test_of_a_stuck_job_grow_rarer(
        self, api: Api, submitted: RunDir, trouble: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [0.0]

        class Clock(pace_module.Pace):  # type: ignore[type-arg]
            def __init__(self, *args: object, **more: object) -> None:
                super().__init__(*args, **{**more, "clock": lambda: now[0]})  # type: ignore[arg-type]

        monkeypatch.setattr("launchers.kubernetes.Pace", Clock)
        launcher = KubernetesLauncher()
        asked = 0
        for second in range(0, 600, 2):
            now[0] = float(second)
            before = len(api.requests)
            self.change(api, trouble, second)
            launcher.state(DIGITS, str(submitted.path))
            asked += len(api.requests) > before
        assert asked < 25, "every 2 s would be 300"

    def change(self, api: Api, trouble: str, second: int) -> None:
        if trouble == "stuck":
            api.date = f"Sat, 21 Nov 2026 10:{second // 60:02d}:{second % 60:02d} GMT"
            body: Body = running("a", 0, head={"deletionTimestamp": "2026-11-21T09:00:00Z"})
            put(api, body, running("b", 1))
            return
        suffix = "bcdfghjklm"[second % 10] + "x7k2"
        top = api.objects[f"{JOBS}/digits"]
        at = f"2026-11-21T10:{second // 60:02d}:{second % 60:02d}Z"
        made = event(top, "FailedCreate", QUOTA.format(second % 2, suffix, 8).partition(": ")[2], at)
        api.put(f"{EVENTS}/{made['metadata']['name']}", made)
