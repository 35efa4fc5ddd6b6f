"""A run in virtual time: the real Coordinator, and nodes whose agents answer it as the real ones do."""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from dist_train.agent import timeouts
from dist_train.agent.coordination.coordinator import Coordinator, Send
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
)
from dist_train.agent.failures.restart_policy import Decision, History, decide, decide_stop
from dist_train.rundir.failure import Failure
from dist_train.rundir.lost_node import LostNode

WORK_S, KILL_S, REJOIN_S, SAVE_S, LEAVE_S, REPLACED_S = 10.0, 0.3, 0.3, 0.5, 0.2, 5.0
PEER_NOTICES_S = 1.0  # a rank's collective fails so long after its peer has gone
TICK_S = 0.5


@dataclass
class Facts:
    """What node 0 has been told of the attempt (or gathering) that is going on."""

    failed: list[Failure] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    lost_at_work: set[int] = field(default_factory=set)
    left_early: bool = False
    left_with: int | None = None
    done: set[int] = field(default_factory=set)  # with 0


class SimulatedRecorder:
    """A recorder in memory that applies the real restart rule."""

    def __init__(self, max_restarts: int, replaces_nodes: bool) -> None:
        self.max_restarts = max_restarts
        self.replaces_nodes = replaces_nodes
        self.attempts = self.restarts = 0
        self.ends: list[Verdict] = []

    def begin_attempt(self, nodes: list[dict[str, str]], fingerprint: dict[str, str]) -> int:
        self.attempts += 1
        return self.attempts - 1

    def first_failure(self, failure: Failure) -> None:
        pass

    def decide(self, failure: Failure, stopping: bool) -> Decision:
        history = History(self.restarts, tuple(range(self.restarts + 1)), keeps_checkpoints=True)
        return decide(failure, history, self.max_restarts, "crash", stopping)

    def decide_stop(self) -> Decision:
        return decide_stop(History(self.restarts, (), keeps_checkpoints=True))

    def ended(self, verdict: Verdict, failure: Failure | None) -> None:
        self.ends.append(verdict)
        self.restarts += verdict.action == "restart"


class SimulatedNode:
    """One node's agent: what node.py and elastic_agent.py do, without processes."""

    def __init__(self, run: SimulatedRun, node: int, pid: int) -> None:
        self.run, self.node, self.pid = run, node, pid
        self.alive = self.connected = True
        self.state = "starting"  # joined, working, done, settling, left
        self.attempt = -1
        self.verdicts: list[Verdict] = []
        self.sent: list[Message] = []
        self.stops = False

    def send(self, message: Message) -> None:
        if self.connected:
            self.sent.append(message)
            self.run.receive(self.node, message)

    def join(self) -> None:
        if not self.alive or self.state not in ("starting", "ending") or self.is_over:
            return
        self.state = "joined"
        self.send(Join(self.node, f"host{self.node}", self.pid, 1, "nonce", {}))

    @property
    def is_over(self) -> bool:
        return bool(self.verdicts) and self.verdicts[-1].action == "exit"

    def got(self, message: Message) -> None:
        match message:
            case Start():
                assert self.state == "joined", f"node {self.node} gets {message} while {self.state}"
                self.state, self.attempt = "working", message.attempt
                attempt = self.attempt
                self.run.after(WORK_S, lambda: self.finish(attempt, 0))
            case StopWorkers() if self.state in ("working", "done"):
                self.settle([])
            case StopAsked() if self.state == "working":
                self.save()
            case Verdict():
                self.on_verdict(message)

    def on_verdict(self, verdict: Verdict) -> None:
        if verdict.action == "restart":
            self.verdicts.append(verdict)
            self.state = "ending"
            self.run.after(REJOIN_S, self.join)
            return
        if self.is_over:
            assert verdict == self.verdicts[-1], f"another verdict: {verdict}"
            return
        self.verdicts.append(verdict)
        self.run.after(LEAVE_S, self.leave)

    def save(self) -> None:
        self.stops = True
        attempt = self.attempt
        self.run.after(SAVE_S, lambda: self.finish(attempt, 75))

    def finish(self, attempt: int, code: int) -> None:
        if self.alive and self.state == "working" and attempt == self.attempt:
            self.state = "done"
            self.send(NodeDone(self.node, {str(self.node): code}, attempt))

    def fail(self, failure: Failure) -> None:
        """A rank of this node fails, if there is one at work."""
        if self.alive and self.state == "working":
            self.state = "settling"
            record = _record(failure)
            self.send(NodeFailed(self.node, [record], self.attempt))
            self.settle([record])

    def settle(self, records: list[dict[str, object]]) -> None:
        self.state = "settling"
        attempt = self.attempt

        def stopped() -> None:
            if self.alive:
                self.send(NodeStopped(self.node, records, attempt))

        self.run.after(KILL_S, stopped)

    def leave(self) -> None:
        if self.alive and self.state != "left":
            self.send(Bye(self.node))
            self.state, self.alive = "left", False
            self.run.disconnect(self, "its agent's connection closed")


class SimulatedRun:
    """A run of some nodes under one coordinator; faults are called from outside, `end()` plays it out."""

    def __init__(self, nodes: int, replaces_nodes: bool = False, max_restarts: int = 3) -> None:
        self.now = 1000.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._pids = itertools.count(100)
        self.recorder = SimulatedRecorder(max_restarts, replaces_nodes)
        self.replaces_nodes = replaces_nodes
        self.coordinator = Coordinator(
            nodes,
            "nonce",
            self.recorder,
            lambda *seen: ("127.0.0.1", 29500),
            lambda: self.now,
            replaces_nodes=replaces_nodes,
        )
        self.facts = Facts()
        self.stop_reasons: list[str] = []
        self.verdict_at: float | None = None
        self.starts: list[int] = []
        self.attempt: int | None = None
        self.agents = [SimulatedNode(self, node, next(self._pids)) for node in range(nodes)]
        self.former: list[SimulatedNode] = []
        self.known_lost: set[int] = set()  # as the coordinator has been told

    # The coordinator's side.

    def receive(self, node: int, message: Message) -> None:
        self._note(node, message)
        self.deliver(self.coordinator.receive(node, message))

    def deliver(self, sends: list[Send]) -> None:
        if self.coordinator.phase == "over" and self.verdict_at is None:
            self.verdict_at = self.now
        for verdict in {id(each): each for _, each in sends if isinstance(each, Verdict)}.values():
            if verdict.action == "restart":
                self.facts = Facts(lost=set(self.facts.lost))
                self.attempt = None
        starts = {message.attempt for _, message in sends if isinstance(message, Start)}
        self.starts += sorted(starts)
        self.attempt = max(starts, default=self.attempt)
        for node, message in sends:
            agent = self.agents[node]
            known = node in self.known_lost and not self.replaces_nodes
            assert agent.connected or not known, f"{message} to lost node {node}"
            self.after(0.0, lambda agent=agent, message=message: self._hand(agent, message))  # type: ignore[misc]

    def _hand(self, agent: SimulatedNode, message: Message) -> None:
        if agent.alive and agent.connected:
            agent.got(message)

    def _note(self, node: int, message: Message) -> None:
        """Keep what the expected exit code depends on; what belongs to another attempt is left out."""
        if self.coordinator.phase == "over":
            return
        running = self.coordinator.phase in ("running", "settling")
        match message:
            case StopAsked():
                if not (self.replaces_nodes and not running and node != 0):
                    self.stop_reasons.append(message.reason)
            case NodeFailed() | NodeStopped() if running and message.attempt == self.attempt:
                self.facts.failed += [Failure.from_record(dict(each)) for each in message.failures]
            case RankExited() if running and message.attempt == self.attempt:
                self.facts.left_early = self.facts.left_early or not self.facts.failed
            case NodeDone() if running and message.attempt == self.attempt:
                if set(message.codes.values()) == {0}:
                    self.facts.done.add(node)

    # Time.

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), call))

    def until(self, ready: Callable[[], bool], limit_s: float) -> bool:
        """Play until it is true; False if it is not so within the limit."""
        deadline = self.now + limit_s
        while not ready():
            settles = self.coordinator.phase == "settling"
            tick_at = self.now + (TICK_S if settles else timeouts.MEMBERSHIP_CHECK_S)
            if self._events and self._events[0][0] <= tick_at:
                when, _, call = heapq.heappop(self._events)
                self.now = max(self.now, when)
                call()
            else:
                self.now = tick_at
                self.deliver(self.coordinator.tick())
            if self.now > deadline:
                return ready()
        return True

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        reached: list[bool] = []
        self.after(seconds, lambda: reached.append(True))
        self.until(lambda: bool(reached), seconds + 1.0)
        self.now = max(self.now, end)

    # What happens to nodes.

    def disconnect(self, agent: SimulatedNode, why: str) -> None:
        """The connection closes (or its heartbeats have ceased)."""
        if not agent.connected:
            return
        agent.connected = False
        self._note_loss(agent.node)
        self.deliver(self.coordinator.lost(agent.node, why))
        if self.replaces_nodes and self.coordinator.phase != "over":
            self.after(REPLACED_S, lambda: self.replace(agent))

    def launcher_reports(self, lost: LostNode) -> None:
        """The launcher, its parent, tells node 0 that an agent has ended."""

        def tell() -> None:
            self._note_loss(lost.node)
            self.deliver(self.coordinator.agent_ended(lost))

        self.after(0.2, tell)

    def _note_loss(self, node: int) -> None:
        gathers = self.coordinator.phase == "joining"
        if self.coordinator.phase == "over" or (self.replaces_nodes and gathers) or node in self.known_lost:
            return
        self.known_lost.add(node)
        self.facts.lost.add(node)
        if node not in self.facts.done or self.coordinator.phase != "running":
            self.facts.lost_at_work.add(node)

    def replace(self, agent: SimulatedNode) -> None:
        """The cluster starts another agent in the place of one that has gone."""
        if self.agents[agent.node] is agent and self.coordinator.phase != "over":
            self.former.append(agent)
            self.known_lost.discard(agent.node)
            self.agents[agent.node] = SimulatedNode(self, agent.node, next(self._pids))
            self.agents[agent.node].join()

    def peers_notice(self, node: int) -> None:
        """The ranks of the other nodes cannot go on without those of this one."""
        for agent in self.agents:
            if agent.node != node:
                agent.fail(rank_failure(agent.node, "victim"))

    def live(self) -> list[SimulatedNode]:
        return [agent for agent in self.agents if agent.alive and agent.connected]


@functools.cache
def rank_failure(node: int, kind: str) -> Failure:
    """The report of a rank that failed, by class."""
    code = {"signal": 137, "exception": 3, "victim": 1}[kind]
    number = 9 if kind == "signal" else None
    return Failure(
        source="rank",
        cls=kind,  # type: ignore[arg-type]
        rank=node,
        node_rank=node,
        exit_code=code,
        signal=number,
        message=kind,
    )


@functools.cache
def _record(failure: Failure) -> dict[str, object]:
    return failure.to_record()
