"""torch's LocalElasticAgent, with what dist-train promises beyond it.

torch keeps the loop, the rank assignment, the worker specification and its events. Overridden,
each for a reason that torchrun's users know: how ranks start (no decorator, exact exit codes, logs
by global rank), how their end is seen (in the kernel's order, 75 is not a failure), how they are
stopped (bounded, siblings never save on their own), and the exit barrier (node 0's verdict).
Pinned by tests/contract/test_elastic_names.py over torch's private names.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

from dist_train import env
from dist_train.agent import bounds
from dist_train.agent.autopsy import failure_of
from dist_train.agent.console import Console, RankLog
from dist_train.agent.gpu_environ import gpu_environ
from dist_train.agent.link import Link
from dist_train.agent.messages import NodeDone, NodeFailed, NodeStopped, RankExited, Start
from dist_train.agent.outlive import Outlived
from dist_train.agent.rendezvous import NodeRendezvous
from dist_train.agent.secret_values import read_secrets
from dist_train.agent.settings import Settings
from dist_train.agent.stopping import Stopping
from dist_train.agent.workers import Rank, Workers, start_rank
from dist_train.errors import ExitCode
from dist_train.jobs.orphans import end_processes
from dist_train.rundir.board import Board

logger = logging.getLogger(__name__)
_EXIT_INTERRUPTED_BY_TERM = 128 + signal.SIGTERM


class NodeAgent(LocalElasticAgent):
    """One node's agent; `run()` returns when node 0's verdict is in the link, or the link is lost."""

    def __init__(
        self, settings: Settings, link: Link, console: Console, stopping: Stopping, rendezvous: NodeRendezvous
    ) -> None:
        # Ranks are assigned from node rank and count: no round trips through a store.
        os.environ["TORCH_ELASTIC_WORKER_IDENTICAL"] = "1"
        spec = WorkerSpec(
            role="default",
            local_world_size=settings.procs,
            rdzv_handler=rendezvous,
            entrypoint=sys.executable,
            args=tuple(settings.rank_target),
            max_restarts=settings.max_restarts,
            monitor_interval=bounds.MONITOR_S,
        )
        # Logs are ours (`_start_workers`); torch would leave an empty folder in /tmp for each agent.
        super().__init__(spec, DefaultLogsSpecs(os.devnull), exit_barrier_timeout=bounds.TERM_TO_KILL_S)
        self._settings = settings
        self._link = link
        self._console = console
        self._stopping = stopping
        self._outlived = Outlived()
        self._workers: Workers | None = None
        self._attempt = Start(0, "", 0, [])

    def begin(self, start: Start) -> None:
        """Node 0 has called the attempt; the next `_start_workers` belongs to it."""
        self._attempt = start

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        settings = self._settings
        self._end_orphans()  # of an attempt whose agent was killed
        board_path = settings.run.control / f"board-node-{settings.node}"
        board = Board.create(board_path, settings.procs)
        logs = settings.run.attempt_logs(self._attempt.attempt)
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        ranks = []
        for worker in worker_group.workers:
            log = RankLog(logs / f"rank-{worker.global_rank}.log")
            error_file = (
                settings.run.attempts / str(self._attempt.attempt) / f"error-rank-{worker.global_rank}.json"
            )
            environ = self._environ(worker_group, worker.global_rank, worker.local_rank)
            environ |= {env.STOP_FILE: str(board_path), env.ERROR_FILE: str(error_file)}
            ranks.append(
                start_rank(
                    worker.global_rank,
                    worker.local_rank,
                    settings.target_of(worker.local_rank),
                    environ,
                    error_file,
                    log,
                )
            )
        self._console.attach([rank.log for rank in ranks])
        self._workers = Workers(ranks, self._console, self._rank_ended)
        self._outlived = Outlived()
        self._stopping.watch(board, self._workers)
        return {rank.local_rank: rank.process.pid for rank in ranks}

    def _environ(self, worker_group: WorkerGroup, rank: int, local_rank: int) -> dict[str, str]:
        settings, start = self._settings, self._attempt
        environ = env.scrub_for_worker(os.environ)
        facts = env.WorkerEnv(
            run_id=settings.run_id,
            run_dir=settings.run.path,
            attempt=start.attempt,
            node_rank=settings.node,
            nnodes=settings.nodes,
            grace_s=settings.grace_s,
            device=settings.device,
            init_method=settings.init_method,
            threads_per_rank=settings.threads_per_rank,
        )
        torchrun = {
            "RANK": rank,
            "LOCAL_RANK": local_rank,
            "WORLD_SIZE": settings.world_size,
            "LOCAL_WORLD_SIZE": settings.procs,
            "GROUP_RANK": settings.node,
            "GROUP_WORLD_SIZE": settings.nodes,
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": settings.world_size,
            "ROLE_NAME": "default",
            "MASTER_ADDR": worker_group.master_addr,
            "MASTER_PORT": worker_group.master_port,
            "TORCHELASTIC_RUN_ID": settings.run_id,
            # torch counts restarts per agent; the attempt is the same on all nodes.
            "TORCHELASTIC_RESTART_COUNT": start.attempt,
            "TORCHELASTIC_MAX_RESTARTS": settings.max_restarts,
            "TORCHELASTIC_USE_AGENT_STORE": settings.init_method == "env://",
        }
        environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
        if settings.address.interface is not None:
            for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                environ.setdefault(name, settings.address.interface)
        environ |= gpu_environ(environ, settings.device, local_rank)
        environ |= read_secrets(settings.run)
        return environ | facts.to_environ() | {name: str(value) for name, value in torchrun.items()}

    def _rank_ended(self, rank: Rank) -> None:
        """Called by the watcher at once, before anything else is known: tell node 0."""
        if rank.ended_by_us and rank.overdue is None:
            return
        if self._ended_well(rank):
            self._link.send(RankExited(self._settings.node, rank.rank, rank.returncode or 0))
        else:
            self._link.send(NodeFailed(self._settings.node, [self._failure(rank)]))

    def _ended_well(self, rank: Rank) -> bool:
        return rank.interrupted or rank.returncode in (0, ExitCode.PREEMPTED)

    def _failure(self, rank: Rank) -> dict[str, object]:
        return failure_of(
            rank, self._settings, self._attempt.attempt, self._stopping.step_of(rank)
        ).to_record()

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        workers = self._workers
        assert workers is not None
        failed = [
            rank for rank in workers.ranks if rank.returncode is not None and not self._ended_well(rank)
        ]
        if failed or self._link.stop_workers or self._link.lost or self._link.verdict:
            return self._settle()
        if workers.all_ended:
            codes = {rank.rank: self._code(rank) for rank in workers.ranks}
            self._link.send(NodeDone(self._settings.node, {str(rank): code for rank, code in codes.items()}))
            return RunResult(state=WorkerState.SUCCEEDED, return_values=codes)
        self._stopping.tick()
        self._outlived.check(workers)
        return RunResult(state=WorkerState.HEALTHY)

    def _code(self, rank: Rank) -> int:
        return _EXIT_INTERRUPTED_BY_TERM if rank.interrupted else rank.returncode or 0

    def _settle(self) -> RunResult:
        """Something failed, here or elsewhere: end the ranks, tell what was seen, hear the verdict."""
        workers = self._workers
        assert workers is not None
        workers.kill(dump_stacks=not self._stopping.asked)
        failures = [
            self._failure(rank)
            for rank in workers.ranks
            if not self._ended_well(rank) and (rank.overdue or not rank.ended_by_us)
        ]
        self._link.send(NodeStopped(self._settings.node, failures))
        self._link.wait(lambda: self._link.verdict is not None, bounds.PROCESS_DEATH_S)
        verdict = self._link.verdict
        # The loop of torch asks this count alone; the budget itself is node 0's, over the whole run.
        self._remaining_restarts = 1 if verdict is not None and verdict.action == "restart" else 0
        return RunResult(state=WorkerState.FAILED)

    def _exit_barrier(self) -> None:
        """All ranks here are done: wait for the others, as long as they work."""
        self._link.wait(lambda: self._link.verdict is not None or self._link.stop_workers is not None)
        if self._link.verdict is None and self._link.lost is None:
            # A node that still worked has failed; ours have nothing left to save.
            self._link.send(NodeStopped(self._settings.node, []))
            self._link.wait(lambda: self._link.verdict is not None, bounds.PROCESS_DEATH_S)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._shutdown()

    def _shutdown(self, death_sig: signal.Signals = signal.SIGKILL, timeout: int = 30) -> None:
        if self._workers is not None:
            self._workers.kill(dump_stacks=False)
            self._workers = None
            self._end_orphans()

    def _end_orphans(self) -> None:
        """What the ranks had started and left behind: nothing of a run outlives it on its node."""
        ended = end_processes(self._settings.run_id, self._settings.node)
        if ended:
            logger.info("ended processes that ranks had left behind: %s", ended)


def run_agent(agent: NodeAgent, until: Callable[[], bool]) -> None:
    """Run attempts until the verdict says exit; one that ended well here may be called again."""
    while True:
        agent.run()
        if until():
            return
        time.sleep(bounds.MONITOR_S)
