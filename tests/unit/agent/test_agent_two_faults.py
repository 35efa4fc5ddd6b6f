"""All pairs of two faults, in all phases of a run, in virtual time: it ends in time, with the right code."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from simulated_run import (
    KILL_S,
    LEAVE_S,
    PEER_NOTICES_S,
    REJOIN_S,
    REPLACED_S,
    SAVE_S,
    TICK_S,
    WORK_S,
    SimulatedRun,
    rank_failure,
)

from dist_train.agent import timeouts
from dist_train.agent.coordination.coordinator import CANCEL, INTERRUPT
from dist_train.agent.coordination.messages import Bye, Join, RankExited, StopAsked
from dist_train.rundir.lost_node import LostNode

Fault = Callable[[SimulatedRun, int], None]
Steps = list[tuple[str, int, float]]  # a fault, its node, the time until the next
# What the next attempt takes, once it is decided that there is one.
AGAIN_S = REJOIN_S + WORK_S + SAVE_S + KILL_S + LEAVE_S + REPLACED_S + TICK_S


def rank_fails(kind: str) -> Fault:
    def fault(run: SimulatedRun, node: int) -> None:
        run.agents[node].fail(rank_failure(node, kind))
        run.after(PEER_NOTICES_S, lambda: run.peers_notice(node))

    return fault


def survivors_fail(run: SimulatedRun, node: int) -> None:
    """The collectives of all other nodes break before anything is known of this one."""
    run.peers_notice(node)


def agent_killed(run: SimulatedRun, node: int) -> None:
    agent = run.agents[node]
    if node == 0 or not agent.alive:
        return
    agent.alive = False
    run.after(PEER_NOTICES_S, lambda: run.peers_notice(node))
    run.disconnect(agent, "its agent's connection closed")
    run.launcher_reports(LostNode(node, -9))


def killed_before_it_connected(run: SimulatedRun, node: int) -> None:
    """Only the launcher sees it."""
    agent = run.agents[node]
    if node == 0 or not agent.alive or agent.state != "starting" or run.replaces_nodes:
        return
    agent.alive = agent.connected = False
    run.launcher_reports(LostNode(node, -9))


def leaves_with_a_code(run: SimulatedRun, node: int) -> None:
    """An agent ends with an error of its own (78): its connection closes, then its parent tells."""
    agent = run.agents[node]
    if node == 0 or not agent.alive or run.replaces_nodes:
        return
    agent.alive = False
    if agent.state == "starting" and run.coordinator.phase != "over":
        run.facts.left_with = 78
    run.after(PEER_NOTICES_S, lambda: run.peers_notice(node))
    run.disconnect(agent, "its agent's connection closed")
    run.launcher_reports(LostNode(node, 78))


def host_dies(run: SimulatedRun, node: int) -> None:
    agent = run.agents[node]
    if node == 0 or not agent.alive:
        return
    agent.alive = False
    run.after(PEER_NOTICES_S, lambda: run.peers_notice(node))
    run.after(timeouts.HEARTBEAT_LOST_S, lambda: run.disconnect(agent, "no heartbeat for 30 s"))


def stop(reason: str) -> Fault:
    def fault(run: SimulatedRun, node: int) -> None:
        if run.agents[node].alive:
            run.agents[node].send(StopAsked(node, reason))

    return fault


def done_early(run: SimulatedRun, node: int) -> None:
    run.agents[node].finish(run.agents[node].attempt, 0)


def rank_leaves_early(run: SimulatedRun, node: int) -> None:
    """A rank ends with 0 while others still work: their collectives break."""
    agent = run.agents[node]
    if agent.alive and agent.state == "working":
        agent.send(RankExited(node, node, 0, agent.attempt))
        run.after(PEER_NOTICES_S, lambda: run.peers_notice(node))


def goodbye(run: SimulatedRun, node: int) -> None:
    """An agent takes its leave without a verdict, and its connection closes."""
    agent = run.agents[node]
    if node != 0 and agent.alive:
        agent.send(Bye(node))
        agent.alive = False
        run.after(PEER_NOTICES_S, lambda: run.peers_notice(node))
        run.disconnect(agent, "its agent's connection closed")


def late_messages(run: SimulatedRun, node: int) -> None:
    """All that any agent of this node has reported in former attempts comes once more."""
    agent = run.agents[node]
    for each in [*run.former, agent]:
        for message in list(each.sent) if each.node == node and agent.connected else ():
            number = getattr(message, "attempt", None)
            if number is not None and (number < agent.attempt or agent.state in ("joined", "ending")):
                run.receive(node, message)


def joins_twice(run: SimulatedRun, node: int) -> None:
    agent = run.agents[node]
    joins = [message for message in agent.sent if isinstance(message, Join)]
    if joins and agent.connected and agent.state in ("joined", "working", "done"):
        run.receive(node, joins[-1])


FAULTS: dict[str, Fault] = {
    "a rank is killed": rank_fails("signal"),
    "a rank raises": rank_fails("exception"),
    "collectives break": survivors_fail,
    "a rank leaves with 0": rank_leaves_early,
    "the agent is killed": agent_killed,
    "the agent is killed unconnected": killed_before_it_connected,
    "the agent leaves with 78": leaves_with_a_code,
    "the host dies": host_dies,
    "TERM": stop("terminated"),
    "Ctrl-C": stop(INTERRUPT),
    "cancel": stop(CANCEL),
    "the node is done": done_early,
    "goodbye": goodbye,
    "late messages": late_messages,
    "joins twice": joins_twice,
}


# Phases: each brings a new run to where the first fault comes.


def starting(run: SimulatedRun) -> None:
    run.agents[0].join()


def gathering(run: SimulatedRun) -> None:
    for agent in run.agents[:-1]:
        agent.join()


def running(run: SimulatedRun) -> None:
    for agent in run.agents:
        agent.join()
    run.pass_time(1.0)


def stopping(run: SimulatedRun) -> None:
    running(run)
    FAULTS["TERM"](run, 0)
    run.pass_time(0.2)


def settling(run: SimulatedRun) -> None:
    running(run)
    run.agents[0].fail(rank_failure(0, "signal"))
    run.pass_time(0.1)


def rejoining(run: SimulatedRun) -> None:
    """Node 0 is back, the others are not."""
    settling(run)
    run.until(lambda: run.agents[0].state == "ending", 5.0)
    run.agents[0].join()


def running_again(run: SimulatedRun) -> None:
    settling(run)
    run.until(lambda: len(run.starts) == 2, 15.0)
    run.pass_time(1.0)


def over(run: SimulatedRun) -> None:
    running(run)
    run.until(lambda: run.coordinator.phase == "over", 60.0)


PHASES: dict[str, Callable[[SimulatedRun], None]] = {
    each.__name__: each
    for each in (starting, gathering, running, stopping, settling, rejoining, running_again, over)
}


def join_late(run: SimulatedRun) -> None:
    """The agents that were still starting come, if they live."""
    for node in range(len(run.agents)):
        if run.agents[node].state == "starting" and run.agents[node].alive:
            run.agents[node].join()


# The rules.


def expected_code(run: SimulatedRun) -> int:
    """The exit code by what node 0 had been told when it gave its verdict, the first rule that applies.

    cancel                              77
    an agent that left before it joined its code
    a signal of a rank                  137, where it is not restarted (stopping, restarts used up)
    an exception of a rank              its code (3): the user's error wins
    a rank left with 0, others broke    1
    a lost node (with what it caused)   79 for the scheduler; 69 where all restarts are used up
    collectives broke, nothing else     1, where it is not restarted
    a stop, nothing else                75
    nothing, or all nodes were done     0
    """
    facts, stop_asked = run.facts, bool(run.stop_reasons)
    kinds = {failure.cls for failure in facts.failed}
    used_up = run.recorder.restarts >= run.recorder.max_restarts
    final = stop_asked or used_up
    lost = facts.lost if kinds else facts.lost_at_work
    code = 0
    if facts.left_with is not None:
        code = facts.left_with
    elif "signal" in kinds and (final or not lost):
        code = 137
    elif "exception" in kinds and "signal" not in kinds:
        code = 3
    elif kinds == {"victim"} and facts.left_early and not stop_asked and not facts.lost_at_work:
        code = 1
    elif facts.lost_at_work or (lost and kinds and not final):
        code = 69 if used_up and not stop_asked else 79
    elif kinds:
        code = 1
    elif stop_asked and len(facts.done) < len(run.agents):
        code = 75
    return 77 if CANCEL in run.stop_reasons and code not in (0, facts.left_with) else code


def bound(run: SimulatedRun, faults: tuple[str, ...]) -> float:
    """Within this time of the last fault the run is over; further attempts have their own time."""
    one = timeouts.HOST_DEATH_S if "the host dies" in faults else timeouts.PROCESS_DEATH_S
    return one + AGAIN_S * (1 + len(faults))


def problem(nodes: int, replaces: bool, max_restarts: int, phase: str, steps: Steps) -> str:
    """Play it and return what was wrong; empty where nothing was."""
    run = SimulatedRun(nodes, replaces, max_restarts)
    try:
        PHASES[phase](run)
        for fault, node, pause_s in steps:
            FAULTS[fault](run, node)
            run.pass_time(pause_s)
        join_late(run)
        limit = bound(run, tuple(fault for fault, _, _ in steps))
        if not run.until(lambda: run.coordinator.phase == "over", limit):
            return f"not over after {limit:.0f} s: {run.coordinator.phase}"
        run.pass_time(timeouts.PROCESS_DEATH_S + 0.1)
    except AssertionError as error:
        return str(error) or repr(error)
    return _wrong_end(run)


def _wrong_end(run: SimulatedRun) -> str:
    verdict = run.coordinator.verdict
    if verdict is None or not run.coordinator.finished:
        return "no verdict, or node 0 stays"
    waiting = [agent.node for agent in run.live()]
    if waiting:
        return f"no verdict for {waiting}, exit {verdict.exit_code}"
    if run.starts != list(range(len(run.starts))):
        return f"attempts {run.starts}"
    if run.recorder.restarts > run.recorder.max_restarts:
        return f"{run.recorder.restarts} restarts of {run.recorder.max_restarts}"
    if [each.action for each in run.recorder.ends].count("exit") != 1:
        return f"recorded ends: {run.recorder.ends}"
    right = expected_code(run)
    if verdict.exit_code != right:
        return f"exit code {verdict.exit_code} instead of {right} ({verdict.why}); {run.facts}"
    return ""


def places(nodes: int) -> list[tuple[int, int]]:
    """On which node the first and the second fault are."""
    return {1: [(0, 0)], 2: [(0, 1), (1, 0), (1, 1)], 3: [(0, 1), (2, 1)]}[nodes]


def pairs(nodes: int) -> Iterator[Steps]:
    for first in FAULTS:
        for second in FAULTS:
            for one, other in places(nodes):
                for pause_s in (0.0, 3.0):
                    yield [(first, one, pause_s), (second, other, 0.0)]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(("nodes", "replaces"), [(1, False), (2, False), (3, False), (2, True), (3, True)])
def test_any_two_faults_end_in_time_with_the_right_code(nodes: int, replaces: bool, phase: str) -> None:
    found = [(steps, problem(nodes, replaces, 3, phase, steps)) for steps in pairs(nodes)]
    problems = [f"{steps}: {text}" for steps, text in found if text]
    if problems:
        pytest.fail(f"{len(problems)} of {len(found)} pairs:\n" + "\n".join(problems[:4]), pytrace=False)
