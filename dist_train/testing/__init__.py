"""Test support for dist-train and its plug-ins; only `plugin` needs pytest.

ranks                run_ranks: call a function on n ranks, each a process, with a deadline
rank_process         main function of such a rank: environment, stack dump on request, answer
kernel_view          threads and connections of a process that hangs, as the kernel shows them
command              launch_cli: run `dist-train ARGS` with a deadline for all that it starts
contracts/           check_launcher, check_strategy: rules that every plug-in keeps
plugin               pytest plug-in: leak check around every test, `require`, report of skips
leak_check           processes, threads, variables and files that a test left behind
required_components  whether a test with a missing component (Slurm) fails or is skipped
process_tree         find processes by parent or environment; kill them; ask for their stacks
pseudo_terminal      run a command on a pseudo-terminal and render its screen
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_train.lazy_exports import lazy_exports

_PUBLIC = {
    "CliResult": "dist_train.testing.command",
    "CliTimedOut": "dist_train.testing.command",
    "RanksFailed": "dist_train.testing.ranks",
    "check_callback": "dist_train.testing.contracts.callback_contract",
    "check_launcher": "dist_train.testing.contracts.launcher_contract",
    "check_sink": "dist_train.testing.contracts.sink_contract",
    "check_storage": "dist_train.testing.contracts.storage_contract",
    "check_strategy": "dist_train.testing.contracts.strategy_contract",
    "launch_cli": "dist_train.testing.command",
    "run_ranks": "dist_train.testing.ranks",
}

if TYPE_CHECKING:
    from dist_train.testing.command import CliResult as CliResult
    from dist_train.testing.command import CliTimedOut as CliTimedOut
    from dist_train.testing.command import launch_cli as launch_cli
    from dist_train.testing.contracts.callback_contract import check_callback as check_callback
    from dist_train.testing.contracts.launcher_contract import check_launcher as check_launcher
    from dist_train.testing.contracts.sink_contract import check_sink as check_sink
    from dist_train.testing.contracts.storage_contract import check_storage as check_storage
    from dist_train.testing.contracts.strategy_contract import check_strategy as check_strategy
    from dist_train.testing.ranks import RanksFailed as RanksFailed
    from dist_train.testing.ranks import run_ranks as run_ranks

__all__ = [
    "CliResult",
    "CliTimedOut",
    "RanksFailed",
    "check_callback",
    "check_launcher",
    "check_sink",
    "check_storage",
    "check_strategy",
    "launch_cli",
    "run_ranks",
]

__getattr__, __dir__ = lazy_exports(__name__, _PUBLIC)
