"""How agents join: seconds until all have the start of the first attempt, and what it costs node 0.

Real sockets, handshakes and messages; no ranks. Node 0's server runs in a process of its own, whose memory
and threads are printed; the agents share some driver processes on the same machine, so that the seconds
are an upper bound. The aim: 2,000 agents in 3 s and 100 MiB. A curve is named by the slope of the logarithms:
1 is linear.

    python benchmarks/agents_joining.py [--rounds 5] [--agents 250 500 1000 2000]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from measurements import Aim, Row, add_arguments, growth, row, show

from dist_train.agent.coordination.agent_connection import AgentConnection
from dist_train.agent.coordination.coordinator import Coordinator, Send
from dist_train.agent.coordination.coordinator_server import CoordinatorServer
from dist_train.agent.coordination.endpoint import Endpoint, connect
from dist_train.agent.coordination.handshake import Identity
from dist_train.agent.coordination.messages import Join, Start, Verdict
from dist_train.agent.descriptor_limit import raise_descriptor_limit
from dist_train.agent.failures.restart_policy import Decision
from dist_train.rundir.failure import Failure

IDENTITY = Identity("benchmark", os.urandom(32))
DRIVERS, AT_ONCE = 2, 64  # processes, and connections that each opens at the same time
IDLE_S = 5.0
FINGERPRINT = {f"fact {number}": "x" * 32 for number in range(12)}


# What one round costs -> its name, its unit, and at most how much of it there should be for _AIM_AGENTS.
_AIM_AGENTS = 2000
_MEASURED: dict[str, tuple[str, str, float | None]] = {
    "seconds": ("until all agents have the start", "s", 3.0),
    "mib": ("memory of node 0 at the peak, more than before", "MiB", 100.0),
    "threads": ("threads of node 0", "threads", None),
    "idle_share": ("a core for node 0's heartbeats", "cores", None),
}


class Cost(NamedTuple):
    """What one round cost; `idle_share` of a core is for node 0's heartbeats (these agents send none)."""

    seconds: float
    mib: float
    threads: int
    idle_share: float


class NoRecords:
    """The coordinator's records, kept nowhere."""

    def begin_attempt(self, nodes: list[dict[str, str]], fingerprint: dict[str, str]) -> int:
        """Number each attempt 0."""
        return 0

    def first_failure(self, failure: Failure) -> None:
        """Keep nothing."""

    def decide(self, failure: Failure, stopping: bool) -> Decision:
        """No attempt fails here."""
        raise RuntimeError(failure.message)

    def decide_stop(self) -> Decision:
        """No attempt is stopped here."""
        raise RuntimeError("stopped")

    def ended(self, verdict: Verdict, failure: Failure | None) -> None:
        """Keep nothing."""


def serve(agents: int, to_parent: Connection) -> None:
    """Node 0's side: send the port, then memory and threads, then the idle time, each when asked."""
    raise_descriptor_limit(agents)

    def no_store(reached: object) -> tuple[str, int]:
        return "127.0.0.1", 1

    def on_fault(error: BaseException) -> list[Send]:
        raise error

    listener = Endpoint("127.0.0.1", 0).listen("127.0.0.1")
    coordinator = Coordinator(agents, "nonce", NoRecords(), no_store, time.monotonic)
    server = CoordinatorServer(listener, IDENTITY, coordinator, on_fault)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before_kib = _status_kib("VmRSS")
    port = listener.getsockname()[1]
    server.start()
    to_parent.send(port)
    to_parent.recv()
    to_parent.send(((_status_kib("VmHWM") - before_kib) / 1024, threading.active_count()))
    began = time.process_time()
    time.sleep(IDLE_S)
    to_parent.send((time.process_time() - began) / IDLE_S)
    to_parent.recv()
    os._exit(0)


def drive(port: int, numbers: range, to_parent: Connection) -> None:
    """Connect and join as these nodes, wait for the start, then for the end."""
    raise_descriptor_limit(len(numbers))
    host = socket.gethostname()

    def begin(node: int) -> AgentConnection:
        deadline = time.monotonic() + 60
        endpoint = Endpoint("127.0.0.1", port)
        connection = connect(endpoint, IDENTITY, node, deadline, lambda text: None, lambda: False)
        connection.send(Join(node, f"host{node}", node, 8, "nonce", FINGERPRINT, host))
        return connection

    to_parent.recv()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        connections = list(pool.map(begin, numbers))
    for connection in connections:
        while not isinstance(connection.receive(), Start):
            pass
    to_parent.send("started")
    to_parent.recv()
    os._exit(0)


def measured(agents: int) -> Cost:
    """One round."""
    context = multiprocessing.get_context("fork")
    node_0, its_end = context.Pipe()
    processes = [context.Process(target=serve, args=(agents, its_end), daemon=True)]
    processes[0].start()
    port = node_0.recv()
    drivers = []
    for number in range(DRIVERS):
        driver, end = context.Pipe()
        drivers.append(driver)
        numbers = range(number, agents, DRIVERS)
        processes.append(context.Process(target=drive, args=(port, numbers, end), daemon=True))
        processes[-1].start()
    time.sleep(0.5)  # all are there
    began = time.perf_counter()
    for driver in drivers:
        driver.send("go")
    for driver in drivers:
        driver.recv()
    seconds = time.perf_counter() - began
    node_0.send("measure")
    mib, threads = node_0.recv()
    idle_share = node_0.recv()
    for end in (*drivers, node_0):
        end.send("end")
    for process in processes:
        process.join()
    return Cost(seconds, mib, threads, idle_share)


def _status_kib(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def rows_of(found: Mapping[int, Sequence[Cost]]) -> list[Row]:
    """A row per number of agents, and one for the curve, of everything that is measured."""
    rows = []
    for name, (measured, unit, most) in _MEASURED.items():
        values = {agents: [float(getattr(cost, name)) for cost in costs] for agents, costs in found.items()}
        for agents, of_size in values.items():
            aim = Aim(at_most=most) if agents == _AIM_AGENTS and most else None
            rows.append(row("agents_joining", measured, f"{agents} agents", of_size, unit, value_aim=aim))
        rows.append(growth("agents_joining", measured, values))
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="how agents join node 0, and what it costs there")
    add_arguments(parser, rounds=5)
    parser.add_argument("--agents", type=int, nargs="+", default=[250, 500, 1000, 2000])
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    print(f"descriptors: {soft} soft, {hard} hard", flush=True)
    found: dict[int, list[Cost]] = {agents: [] for agents in options.agents}
    for _ in range(options.rounds):
        for agents in options.agents:
            found[agents].append(measured(agents))
    show(rows_of(found), options.record)


if __name__ == "__main__":
    main()
