"""The local launcher: it runs on this machine, sees the exit codes of its agents and prints the report."""

from __future__ import annotations

from dist_train.agent.platform.base_platform import Platform
from dist_train.agent.settings import Settings
from dist_train.rundir.failure import Failure


class LocalPlatform(Platform):
    """Agents that `launch` started on its own machine."""

    nodes_share_a_machine = True
    prints_failure = False  # the launcher prints it, after all output

    def scheduler_code(self, code: int, failure: Failure | None) -> int:
        """There is no scheduler: the code as it is."""
        return code

    def report_startup_error(self, settings: Settings, code: int, why: str) -> None:
        """Nothing: the launcher has the exit code and stderr."""
