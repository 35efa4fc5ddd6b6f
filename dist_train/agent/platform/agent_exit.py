"""How an agent ends: the run's exit code, the reason, and the exit code of the process."""

from __future__ import annotations

from dataclasses import dataclass

from dist_train.agent.settings import Settings
from dist_train.errors import ExitCode
from dist_train.rundir.failure import Failure


@dataclass(frozen=True)
class AgentExit:
    """How this agent ends.

    Attributes:
        code: the run's exit code, as `launch` returns it.
        process_code: the exit code of the process, where the scheduler must get another one.
    """

    code: int
    why: str
    failure: Failure | None = None
    attempt: int | None = None
    process_code: int | None = None

    @property
    def exit_code(self) -> int:
        """The exit code of the process."""
        return self.code if self.process_code is None else self.process_code

    @classmethod
    def from_error(cls, code: int, error: Exception, settings: Settings | None) -> AgentExit:
        """Build the exit of an agent that ended by an error; `settings` is None before they are read."""
        failure = Failure(
            source="dist-train",
            cls="dist_train",
            node_rank=None if settings is None else settings.node,
            host="" if settings is None else settings.host,
            exit_code=code,
            message=str(error) or repr(error),
        )
        first_line = str(error).partition("\n")[0] or repr(error)
        return cls(code, first_line, None if code == ExitCode.PREEMPTED else failure)
