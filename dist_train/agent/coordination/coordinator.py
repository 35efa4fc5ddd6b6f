"""Node 0's state machine of an attempt, without sockets, threads or a clock of its own.

    joining -> running -> settling -> joining (the next attempt) | over

Each call returns the messages to send; coordinator_server sends them.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from dist_train.agent import timeouts
from dist_train.agent.coordination.attempt_state import AttemptState, lost_node
from dist_train.agent.coordination.membership_line import node_names, nodes_here
from dist_train.agent.coordination.messages import (
    Bye,
    Join,
    Message,
    NodeDone,
    NodeFailed,
    NodeStopped,
    RankExited,
    Start,
    StopAsked,
    StopWorkers,
    Verdict,
    Waiting,
)
from dist_train.agent.coordination.preflight_agreement import disagreement
from dist_train.agent.failures.restart_policy import Decision
from dist_train.agent.failures.root_cause import choose_root_cause
from dist_train.errors import ExitCode
from dist_train.rundir.failure import Failure
from dist_train.rundir.lost_node import LostNode

Send = tuple[int, Message]
CANCEL = "cancel"  # the reason of a stop that `dist-train cancel` asked for
INTERRUPT = "Ctrl-C"  # the reason of a stop by Ctrl-C at the launcher
_ENDED_BY_TERM = 128 + signal.SIGTERM


class Recorder(Protocol):
    """The records that node 0 writes into the run directory."""

    def begin_attempt(self, nodes: list[dict[str, str]], fingerprint: dict[str, str]) -> int:
        """Number the attempt and record it; raises ConfigError where the code has changed.

        Args:
            nodes: per node its host and the scheduler's variables.
        """

    def first_failure(self, failure: Failure) -> None:
        """Record the first report of a failure in an attempt."""

    def decide(self, failure: Failure, stopping: bool) -> Decision:
        """Apply the restart rule to the run's history."""

    def decide_stop(self) -> Decision:
        """Decide on a stop without a failure: 75, or 76 where restarting has not helped."""

    def ended(self, verdict: Verdict, failure: Failure | None) -> None:
        """Write the verdict, the failure and the events."""


@dataclass(frozen=True)
class Timing:
    """Bounds in seconds; tests make them short."""

    join_s: float = timeouts.JOIN_S
    membership_check_s: float = timeouts.MEMBERSHIP_CHECK_S
    reports_s: float = timeouts.REPORTS_S
    leave_s: float = timeouts.PROCESS_DEATH_S


class Coordinator:
    """Decides when an attempt starts and how it ended.

    Args:
        open_store: called with the addresses at which the other nodes have reached node 0; opens the ranks'
            store and returns its host and port.
        replaces_nodes: the cluster starts another agent in the place of one that has gone, so that one that
            leaves while the others gather is waited for, and ends nothing.
    """

    def __init__(
        self,
        nodes: int,
        nonce: str,
        recorder: Recorder,
        open_store: Callable[[frozenset[str]], tuple[str, int]],
        clock: Callable[[], float],
        timing: Timing | None = None,
        replaces_nodes: bool = False,
    ) -> None:
        self.nodes = nodes
        self._nonce = nonce
        self._recorder = recorder
        self._open_store = open_store
        self._clock = clock
        self._timing = timing or Timing()
        self._replaces_nodes = replaces_nodes
        self._started_at = clock()
        self._next_membership_check = self._started_at + self._timing.membership_check_s
        self.phase: Literal["joining", "running", "settling", "over"] = "joining"
        self.stopping: str | None = None
        self._joins: dict[int, Join] = {}  # for the next attempt
        self._ever_joined: set[int] = set()
        self._absent: set[int] = set()  # nodes whose agent has gone
        self._attempt = AttemptState()
        self._has_begun = False  # an attempt, the present one or one before it
        self._gone: set[int] = set()
        self._leaving: set[int] = set()
        self._over_at = 0.0
        self.verdict: Verdict | None = None

    @property
    def finished(self) -> bool:
        """Whether node 0's agent may leave: every node has read the verdict, or the time for that is up."""
        if self.phase != "over":
            return False
        all_left = self._gone | self._absent | {0} >= self._ever_joined
        return all_left or self._clock() > self._over_at + self._timing.leave_s

    def receive(self, node: int, message: Message) -> list[Send]:
        """Handle a message from a node; a report that belongs to another attempt changes nothing."""
        match message:
            case Join():
                return self._on_join(message)
            case RankExited() | NodeFailed() | NodeStopped() | NodeDone():
                return self._on_report(node, message) if message.attempt == self._attempt.number else []
            case StopAsked():
                return self._on_stop(message)
            case Bye():
                if self.phase == "over":
                    self._gone.add(node)
                return []
            case _:
                return []

    def lost(self, node: int, why: str) -> list[Send]:
        """Handle the loss of a node: its agent's connection closed, or its heartbeats ceased."""
        if node in self._absent:
            return []
        if self._replaces_nodes and self.phase == "joining":
            self._forget(node)
            return []
        self._absent.add(node)
        if self.phase == "over":
            return []
        at_work = self.phase != "running" or node not in self._attempt.done
        join = self._joins.pop(node, None) or self._attempt.members.get(node)
        failure = lost_node(node, join.host if join else "unknown host", why)
        self._attempt.lost[node] = failure
        # One that had finished its work has nothing left to lose: only its Bye is missing.
        return self._on_failures([failure]) if at_work else []

    def agent_ended(self, lost: LostNode) -> list[Send]:
        """Handle the end of a node's agent, as its parent tells it: perhaps before it had connected."""
        if lost.returncode < 0 or self.phase == "over" or lost.node in self._ever_joined:
            return self.lost(lost.node, lost.why)
        self._absent.add(lost.node)
        return self._refuse(f"node {lost.node} did not join: {lost.why}", lost.returncode)

    def tick(self) -> list[Send]:
        """Handle what is due by now: a timeout, a membership check, the verdict."""
        now = self._clock()
        if self.phase == "joining" and now >= self._started_at + self._timing.join_s:
            return self._give_up_waiting(now)
        if self.phase == "joining" and now >= self._next_membership_check:
            return self._membership_check(now)
        if self.phase == "settling" and (
            now >= self._attempt.settle_at or self._attempt.all_stopped(self.nodes)
        ):
            return self._settle()
        return []

    def _on_join(self, join: Join) -> list[Send]:
        if self.verdict is not None and self.phase == "over":
            self._absent.discard(join.node)
            return [(join.node, self.verdict)]
        if join.node in self._leaving:
            return [(join.node, _stopped_alone(join.node))]
        member = self._attempt.members.get(join.node)
        if member == join and self.phase == "running":
            return []  # once more what its attempt began with
        gone: list[Send] = []
        if member is not None and self.phase == "running":
            gone = self.lost(join.node, "another agent has come in the place of its own")
        self._joins[join.node] = join
        self._ever_joined.add(join.node)
        self._absent.discard(join.node)
        return gone + self._begin_if_all_are_here()

    def _begin_if_all_are_here(self) -> list[Send]:
        if len(self._joins) < self.nodes or self.phase != "joining":
            return []
        why_not = disagreement(self._joins, self._nonce)
        return self._begin() if why_not is None else self._refuse(why_not)

    def fault(self, why: str, code: ExitCode) -> list[Send]:
        """End the run on all nodes because node 0 cannot go on; writes nothing (writing may have failed)."""
        if self.phase == "over":
            return []
        failure = Failure(source="dist-train", cls="dist_train", exit_code=code, message=why)
        return self._over(Verdict("exit", code, why, failure.to_record()))

    def _refuse(self, why: str, code: int = ExitCode.CONFIG) -> list[Send]:
        failure = Failure(source="dist-train", cls="dist_train", exit_code=code, message=why)
        return self._end(Verdict("exit", code, why, failure.to_record()), failure)

    def _begin(self) -> list[Send]:
        joins = [self._joins[node] for node in range(self.nodes)]
        nodes = [_facts_of(join) for join in joins]
        number = self._recorder.begin_attempt(nodes, self._joins[0].fingerprint)
        reached = frozenset(join.reached for join in joins if join.node != 0)
        address, port = self._open_store(reached)
        self.phase = "running"
        self._has_begun = True
        self._attempt = AttemptState(number, self._joins)
        self._joins = {}
        return self._to_all(Start(number, address, port))

    def _on_report(self, node: int, message: RankExited | NodeFailed | NodeStopped | NodeDone) -> list[Send]:
        attempt = self._attempt
        match message:
            case RankExited():
                attempt.exited[message.rank] = node
                return []
            case NodeDone():
                attempt.done[node] = message.codes
                return self._on_done()
            case NodeStopped():
                attempt.stopped.add(node)
        return self._on_failures([Failure.from_record(dict(record)) for record in message.failures])

    def _on_failures(self, failures: list[Failure]) -> list[Send]:
        attempt = self._attempt
        new = attempt.add(failures)
        if self.phase == "settling":
            return self._settle() if attempt.all_stopped(self.nodes) else []
        if self.phase == "over" or not new:
            return []
        attempt.exited_before_failure = dict(attempt.exited)
        self._recorder.first_failure(new[0])
        self.phase = "settling"
        attempt.settle_at = self._clock() + self._timing.reports_s
        return self._to_all(StopWorkers(new[0].message or new[0].cls))

    def _settle(self) -> list[Send]:
        attempt = self._attempt
        early = {} if self.stopping else attempt.exited_before_failure
        failure = attempt.complete(choose_root_cause(attempt.failures, early))
        decision = self._recorder.decide(failure, self.stopping is not None)
        loss = None if self._replaces_nodes else attempt.loss_after(failure)
        if decision.restart and loss is not None:
            # Nobody comes in the place of the lost node: all nodes must be started again.
            failure = loss
            decision = self._recorder.decide(failure, stopping=False)
        action: Literal["restart", "exit"] = "restart" if decision.restart else "exit"
        code = ExitCode.CANCELLED if self.stopping == CANCEL else decision.exit_code
        verdict = Verdict(action, code, decision.why, failure.to_record())
        if not decision.restart:
            return self._end(verdict, failure)
        self._recorder.ended(verdict, failure)
        sends = self._to_all(verdict)
        self.phase = "joining"
        self._attempt = AttemptState()
        if self._replaces_nodes:
            self._absent.clear()  # they are missing, as at the first gathering
        self._started_at = self._clock()
        self._next_membership_check = self._started_at + self._timing.membership_check_s
        return sends + self._begin_if_all_are_here()

    def _on_done(self) -> list[Send]:
        done = self._attempt.done
        if self.phase != "running" or len(done) < self.nodes:
            return []
        codes = {code for node in done.values() for code in node.values()}
        if codes != {0} and self.stopping == CANCEL:
            return self._end(Verdict("exit", ExitCode.CANCELLED, "cancelled"), None)
        if _ENDED_BY_TERM in codes:
            why = "stopped; the script does not ask whether to stop (run.should_stop)"
            code = ExitCode.INTERRUPTED if self.stopping == INTERRUPT else _ENDED_BY_TERM
            return self._end(Verdict("exit", code, why), None)
        if ExitCode.PREEMPTED in codes:
            return self._end_stopped()
        return self._end(Verdict("exit", ExitCode.OK, "done"), None)

    def _end_stopped(self) -> list[Send]:
        decision = self._recorder.decide_stop()
        return self._end(Verdict("exit", decision.exit_code, decision.why), None)

    def _on_stop(self, asked: StopAsked) -> list[Send]:
        if self.phase == "over":
            return []
        if self.stopping is not None:
            # The nodes stop already; but a run that is cancelled must not be started again.
            self.stopping = CANCEL if asked.reason == CANCEL else self.stopping
            return []
        if self._replaces_nodes and self.phase == "joining" and asked.node != 0:
            if asked.node in self._leaving:
                return []
            self._forget(asked.node)
            self._leaving.add(asked.node)
            return [(asked.node, _stopped_alone(asked.node))]
        self.stopping = asked.reason
        if self.phase == "joining":
            if asked.reason != CANCEL:
                return self._end_stopped()
            return self._end(Verdict("exit", ExitCode.CANCELLED, "cancelled before it began"), None)
        return self._to_all(asked)

    def _forget(self, node: int) -> None:
        """Count a node as missing until another agent has joined in its place."""
        self._joins.pop(node, None)
        for nodes in (self._ever_joined, self._gone, self._leaving):
            nodes.discard(node)

    def _first_missing(self) -> int:
        return next(node for node in range(self.nodes) if node not in self._joins)

    def _membership(self) -> tuple[str, str]:
        """Name the missing nodes and those that are here."""
        missing = (f"node {node}" for node in range(self.nodes) if node not in self._joins)
        here = (f"node {node} ({join.host})" for node, join in sorted(self._joins.items()))
        return node_names(missing), nodes_here(here)

    def _give_up_waiting(self, now: float) -> list[Send]:
        names, here = self._membership()
        waited = f"in {now - self._started_at:.0f} s; here: {here}"
        if not self._has_begun:
            return self._refuse(f"{names} never came {waited}", ExitCode.UNAVAILABLE)
        failure = lost_node(self._first_missing(), "unknown host", f"{names} did not come back {waited}")
        decision = self._recorder.decide(failure, self.stopping is not None)
        return self._end(Verdict("exit", decision.exit_code, decision.why, failure.to_record()), failure)

    def _membership_check(self, now: float) -> list[Send]:
        self._next_membership_check = now + self._timing.membership_check_s
        return self._to_all(Waiting(*self._membership(), now - self._started_at))

    def _end(self, verdict: Verdict, failure: Failure | None) -> list[Send]:
        self._recorder.ended(verdict, failure)
        return self._over(verdict)

    def _over(self, verdict: Verdict) -> list[Send]:
        self.verdict = verdict
        self.phase = "over"
        self._over_at = self._clock()
        return self._to_all(verdict)

    def _to_all(self, message: Message) -> list[Send]:
        nobody = self._absent | self._leaving
        return [(node, message) for node in range(self.nodes) if node not in nobody]


def _stopped_alone(node: int) -> Verdict:
    return Verdict("exit", ExitCode.PREEMPTED, f"node {node} was stopped while the nodes gathered")


def _facts_of(join: Join) -> dict[str, str]:
    """Return what the run's events say of a node."""
    cpus = {"cpus": join.cpus} if join.cpus else {}
    return {"host": join.host, "machine": join.machine, **join.scheduler, **cpus}
