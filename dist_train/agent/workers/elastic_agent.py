"""torch's LocalElasticAgent, with dist-train's own start, stop and exit barrier.

torch keeps the loop, the rank assignment, the worker specification and its events. Overridden: how
ranks start (no decorator, exact exit codes, logs by global rank), how their end is seen (in the
kernel's order, 75 is not a failure), how they are stopped (bounded, siblings never save on their
own), and the exit barrier (node 0's verdict). tests/contract/test_elastic_names.py checks the private
names of torch that this relies on.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

from dist_train import env
from dist_train.agent import timeouts
from dist_train.agent.coordination.coordinator_client import CoordinatorClient
from dist_train.agent.coordination.messages import (
    NodeDone,
    NodeFailed,
    NodeStopped,
    RankExited,
    StacksAsked,
    Start,
    Verdict,
)
from dist_train.agent.coordination.rendezvous import NodeRendezvous
from dist_train.agent.settings import Settings
from dist_train.agent.workers.exit_watchdog import ExitWatchdog
from dist_train.agent.workers.failure_report import failure_of
from dist_train.agent.workers.graceful_stop import GracefulStop
from dist_train.agent.workers.memory_watch import MemoryWatch
from dist_train.agent.workers.process_group import program_left
from dist_train.agent.workers.processes import Workers
from dist_train.agent.workers.rank import Rank
from dist_train.agent.workers.rank_log import RankLog
from dist_train.agent.workers.rank_output import RankOutput
from dist_train.agent.workers.stacks.collect_stacks import collect_stacks
from dist_train.agent.workers.start_method import StartMethod
from dist_train.agent.workers.worker_environment import WORKER_IDENTICAL, worker_environment
from dist_train.errors import ExitCode
from dist_train.jobs.orphans import end_processes
from dist_train.rundir.requests.stacks_request import write_answer
from dist_train.rundir.stop_file import ExitMark, StopFile

logger = logging.getLogger(__name__)
_LOOP_S = 0.001  # torch's loop sleeps this long; what it then calls waits for something to do
_EXIT_INTERRUPTED_BY_TERM = 128 + signal.SIGTERM


class NodeAgent(LocalElasticAgent):
    """One node's elastic agent; `run()` returns when the client has node 0's verdict, or node 0 is lost."""

    def __init__(
        self,
        settings: Settings,
        client: CoordinatorClient,
        output: RankOutput,
        graceful_stop: GracefulStop,
        rendezvous: NodeRendezvous,
        start_method: StartMethod,
    ) -> None:
        # Ranks are assigned from node rank and count: no round trips through a store.
        os.environ[WORKER_IDENTICAL] = "1"
        spec = WorkerSpec(
            role="default",
            local_world_size=settings.procs,
            rdzv_handler=rendezvous,
            entrypoint=sys.executable,
            args=tuple(settings.rank_target),
            max_restarts=settings.max_restarts,
            monitor_interval=_LOOP_S,
        )
        # Logs are ours (`_start_workers`); torch would leave an empty folder in /tmp for each agent.
        super().__init__(spec, DefaultLogsSpecs(os.devnull), exit_barrier_timeout=timeouts.TERM_TO_KILL_S)
        self._settings = settings
        self._client = client
        self._output = output
        self._graceful_stop = graceful_stop
        self._start_method = start_method
        self._exit_watchdog: ExitWatchdog | None = None
        self._workers: Workers | None = None
        self._asks_stacks = threading.Lock()
        self._attempt = Start(0, "", 0)
        self._memory = MemoryWatch()
        self._store_prefix = ""
        # Node 0's decision at the end of the last attempt here.
        self.last_verdict: Verdict | None = None

    def begin(self, start: Start, store_prefix: str) -> None:
        """Set the attempt that node 0 has started; the next `_start_workers` belongs to it."""
        self._attempt = start
        self._store_prefix = store_prefix

    def answer_stacks(self, asked: StacksAsked) -> None:
        """Collect the stacks of this node's ranks and write them, in a thread of its own."""
        workers, settings = self._workers, self._settings
        ranks = [] if workers is None else workers.ranks
        chosen = [rank for rank in ranks if not asked.ranks or rank.rank in asked.ranks]

        def answer() -> None:
            try:
                with self._asks_stacks:  # a rank has one file for its answer
                    found = collect_stacks(chosen, settings.host)
                write_answer(settings.run, asked.request, settings.node, settings.host, found)
            except OSError as error:  # who asked has gone, or the disk is full: the training goes on
                logger.info("stacks were asked for, and not written: %s", error)

        threading.Thread(target=answer, name="agent-stacks", daemon=True).start()

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        settings = self._settings
        self._end_orphans()  # of an attempt whose agent was killed
        self._memory = MemoryWatch()
        stop_file_path = settings.run.control / f"board-node-{settings.node}"
        stop_file = StopFile.create(stop_file_path, settings.procs)
        logs = settings.run.attempt_logs(self._attempt.attempt)
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        environs = [self._environ(worker_group, worker, stop_file_path) for worker in worker_group.workers]
        targets = [settings.target_of(worker.local_rank) for worker in worker_group.workers]
        processes = self._start_method.start(targets, environs, self._output.note)
        ranks = [
            Rank(
                worker.global_rank,
                worker.local_rank,
                process,
                self._error_file(worker),
                RankLog(logs, worker.global_rank, settings.log_limit_bytes, self._output),
            )
            for worker, process in zip(worker_group.workers, processes, strict=True)
        ]

        def exit_mark(rank: Rank) -> ExitMark:
            return stop_file.read_exit(rank.local_rank)

        rank_ended = functools.partial(self._rank_ended, self._attempt)
        self._workers = Workers(ranks, self._output, rank_ended, exit_mark)
        self._exit_watchdog = ExitWatchdog(exit_mark)
        self._graceful_stop.watch(stop_file, self._workers)
        return {rank.local_rank: rank.process.pid for rank in ranks}

    def _environ(self, group: WorkerGroup, worker: Worker, stop_file: Path) -> dict[str, str]:
        environ = worker_environment(
            self._settings,
            os.environ,
            self._attempt.attempt,
            worker.global_rank,
            worker.local_rank,
            str(group.master_addr),
            int(group.master_port or 0),
        )
        environ |= {env.STOP_FILE: str(stop_file), env.ERROR_FILE: str(self._error_file(worker))}
        environ[env.STORE_PREFIX] = self._store_prefix
        # Always set: the agent's own may be that of a rank in which this job was launched.
        environ[env.STEP_SIGNALS] = str(int(self._graceful_stop.step_signals))
        return environ

    def _error_file(self, worker: Worker) -> Path:
        folder = self._settings.run.attempts / str(self._attempt.attempt)
        return folder / f"error-rank-{worker.global_rank}.json"

    def _rank_ended(self, attempt: Start, rank: Rank) -> None:
        """Report to node 0 at once; called by the thread that watches the attempt's ranks."""
        if rank.ended_by_us and rank.limit_exceeded is None:
            return
        node, number = self._settings.node, attempt.attempt
        self._graceful_stop.note_end(rank)
        if self._ended_well(rank):
            self._client.send(RankExited(node, rank.rank, rank.returncode or 0, number))
        else:
            self._client.send(NodeFailed(node, [self._failure(rank, attempt)], number))
        self._client.wake()

    def _ended_well(self, rank: Rank) -> bool:
        return rank.interrupted or rank.returncode in (0, ExitCode.PREEMPTED)

    def _failure(self, rank: Rank, attempt: Start) -> dict[str, object]:
        step = self._graceful_stop.step_of(rank)
        return failure_of(rank, self._settings, attempt, step, self._memory).to_record()

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        workers, client = self._workers, self._client
        assert workers is not None

        def has_failed() -> bool:
            codes = [(rank.returncode, rank) for rank in workers.ranks]
            failed = any(code is not None and not self._ended_well(rank) for code, rank in codes)
            return bool(failed or client.stop_workers or client.lost or client.verdict)

        client.wait(lambda: workers.all_ended or has_failed(), timeouts.MONITOR_S)
        if has_failed():
            return self._settle()
        if workers.all_ended:
            codes = {rank.rank: self._code(rank) for rank in workers.ranks}
            by_rank = {str(rank): code for rank, code in codes.items()}
            self._client.send(NodeDone(self._settings.node, by_rank, self._attempt.attempt))
            return RunResult(state=WorkerState.SUCCEEDED, return_values=codes)
        self._graceful_stop.tick()
        self._memory.tick()
        if self._exit_watchdog is not None:
            self._exit_watchdog.check(workers)
        return RunResult(state=WorkerState.HEALTHY)

    def _code(self, rank: Rank) -> int:
        return _EXIT_INTERRUPTED_BY_TERM if rank.interrupted else rank.returncode or 0

    def _settle(self) -> RunResult:
        """End the ranks after a failure here or elsewhere, report what was seen, wait for the verdict."""
        workers = self._workers
        assert workers is not None
        workers.let_exit(timeouts.OWN_EXIT_S)
        workers.kill(dump_stacks=not self._graceful_stop.asked)
        failures = [
            self._failure(rank, self._attempt)
            for rank in workers.ranks
            if not self._ended_well(rank) and (rank.limit_exceeded or not rank.ended_by_us)
        ]
        self._client.send(NodeStopped(self._settings.node, failures, self._attempt.attempt))
        self._client.wait(lambda: self._client.verdict is not None, timeouts.PROCESS_DEATH_S)
        verdict = self.last_verdict = self._client.verdict
        # torch's loop reads only this count; the budget itself is node 0's, over the whole run.
        self._remaining_restarts = 1 if verdict is not None and verdict.action == "restart" else 0
        return RunResult(state=WorkerState.FAILED)

    def _exit_barrier(self) -> None:
        """Wait for the other nodes once all ranks here are done, as long as they work."""
        self._client.wait(lambda: self._client.verdict is not None or self._client.stop_workers is not None)
        if self._client.verdict is None and self._client.lost is None:
            # A node that still worked has failed; the ranks here have nothing left to save.
            self._client.send(NodeStopped(self._settings.node, [], self._attempt.attempt))
            self._client.wait(lambda: self._client.verdict is not None, timeouts.PROCESS_DEATH_S)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._shutdown()

    def _shutdown(self, death_sig: signal.Signals = signal.SIGKILL, timeout: int = 30) -> None:
        if self._workers is not None:
            self._workers.kill(dump_stacks=False)
            ended_well = all(rank.ended_well for rank in self._workers.ranks)
            self._workers = None
            self._end_orphans(self._note_left_running if ended_well else None)

    def _note_left_running(self, pid: int) -> None:
        if program := program_left(pid):
            self._output.note_left_running("a rank", program)

    def _end_orphans(self, before: Callable[[int], None] | None = None) -> None:
        """End the processes that ranks had started and left behind on this node."""
        ended = end_processes(
            self._settings.run_id, self._settings.node, before, keep=self._start_method.warm_parents
        )
        if ended:
            logger.info("ended processes that ranks had left behind: %s", ended)


def run_agent(agent: NodeAgent, until: Callable[[], bool]) -> None:
    """Run attempts until `until()`: an attempt that ended well here may be restarted for another node."""
    while True:
        agent.run()
        if until():
            return
        time.sleep(timeouts.MONITOR_S)
