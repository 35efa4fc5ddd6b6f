"""The Failure record of a rank that has ended, from what its own node can see."""

from __future__ import annotations

from dist_train.agent.coordination.messages import Start
from dist_train.agent.failures.abort_reason import hint_for_abort
from dist_train.agent.failures.classify_failure import RankExit, classify, exit_code_of
from dist_train.agent.failures.memory_failure import with_memory_kill
from dist_train.agent.settings import Settings
from dist_train.agent.workers.memory_watch import MemoryWatch
from dist_train.agent.workers.rank import Rank
from dist_train.rundir.failure import Failure


def failure_of(
    rank: Rank,
    settings: Settings,
    start: Start,
    step: int | None,
    memory: MemoryWatch,
) -> Failure:
    """Build one Failure from exit status, error record, last lines of stderr and kills for memory.

    Long texts are cut.
    """
    record = rank.error_record() or {}
    facts = RankExit(
        returncode=rank.returncode or 0,
        exception=_text(record.get("exception")),
        message=_text(record.get("text")) or "",
        log_tail=tuple(rank.stderr_tail),
        limit_exceeded=rank.limit_exceeded,
        interrupted=rank.interrupted,
        cut_short=rank.cut_short,
        has_peers=settings.world_size > 1,
        store=(start.master_addr, start.master_port),
        scheduler_sigterm=rank.scheduler_sigterm,
        traceback=_text(record.get("traceback")) or "",
        aborted=rank.abort_line,
    )
    cls, message = classify(facts)
    line = record.get("line")
    failure = Failure(
        # A rank's own 75 is no request to be requeued.
        source="dist-train" if record.get("source") == "dist-train" or facts.lost_a_command else "rank",
        cls=cls,
        rank=rank.rank,
        local_rank=rank.local_rank,
        node_rank=settings.node,
        host=settings.host,
        pid=rank.process.pid,
        exit_code=exit_code_of(facts),
        signal=-facts.returncode if facts.returncode < 0 else None,
        exception=facts.exception,
        message=message,
        file=_text(record.get("file")),
        line=line if isinstance(line, int) else None,
        traceback=_text(record.get("traceback")),
        hint=_text(record.get("hint")) or (hint_for_abort(message) if facts.returncode < 0 else None),
        log=str(rank.log.path),
        log_tail=facts.log_tail,
        attempt=start.attempt,
        step=step,
    )
    kill = memory.kill_before_end_of(rank.rank)
    whole = str(rank.error_file if record else rank.log.path)
    return with_memory_kill(failure, kill, settings.memory_option, memory.is_counted).shortened(whole)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
