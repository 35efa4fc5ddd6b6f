"""How this node's ranks start: forked from the warm parent where that is safe, else spawned."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence

from dist_train.agent.settings import Settings
from dist_train.agent.warm_parent.forked_rank import RankStart
from dist_train.agent.warm_parent.rank_child import RankProcess
from dist_train.agent.warm_parent.spawn_reason import is_expected, reason_after_import, reason_before_import
from dist_train.agent.warm_parent.warm_parent import ForkFailed, WarmParent
from dist_train.agent.workers import reaper
from dist_train.agent.workers.process_title import set_title
from dist_train.agent.workers.rank import UNREAPED, spawn_process
from dist_train.jobs.frozen_imports import frozen_imports

# What dist_train.entrypoint imports, which runs a config.
_IMPORTS_OF_CONFIGS = ("dist_train.resilience.session", "dist_train.trainer.run_training")
# Imports this module, too.
_FIRST_OF_RANKS = "dist_train.agent.workers.worker_main"
logger = logging.getLogger(__name__)


class StartMethod:
    """Starts the ranks of each attempt.

    Args:
        warm: the warm parent, if ranks may be forked.
        why_spawned: else the reason, where the user should know it.
    """

    def __init__(self, warm: WarmParent | None, why_spawned: str | None) -> None:
        self._warm = warm
        self._why_spawned = why_spawned

    @property
    def warm_parents(self) -> tuple[int, ...]:
        """The pid of the warm parent, if there is one: shortly after its fork it looks like a rank's."""
        return () if self._warm is None else (self._warm.pid,)

    def start(
        self,
        targets: Sequence[Sequence[str]],
        environs: Sequence[Mapping[str, str]],
        note: Callable[[str], None],
    ) -> list[RankProcess]:
        """Start a rank for each target; call it from the main thread (PR_SET_PDEATHSIG)."""
        forked = self._fork(targets, environs)
        if forked is not None:
            return list(forked)
        if self._why_spawned is not None:
            note(f"each rank imports torch by itself: {self._why_spawned}")
            self._why_spawned = None  # once is enough
        return [spawn_process(target, environ) for target, environ in zip(targets, environs, strict=True)]

    def _fork(
        self, targets: Sequence[Sequence[str]], environs: Sequence[Mapping[str, str]]
    ) -> Sequence[RankProcess] | None:
        if self._warm is None:
            return None
        agent, folder = str(os.getpid()), os.getcwd()
        starts = [
            RankStart([agent, *target], dict(environ), folder)
            for target, environ in zip(targets, environs, strict=True)
        ]
        # Orphans that came to this process while it forked the last attempt's ranks.
        reaper.reap(reaper.zombies(), lambda: UNREAPED)
        reason = self._warm.reason_to_spawn(starts)
        if reason is None:
            try:
                return self._warm.start_ranks(starts, UNREAPED.add)
            except ForkFailed as error:
                reason = str(error)
        self._warm.close()
        self._warm, self._why_spawned = None, reason
        return None


def choose_start_method(settings: Settings, environ: Mapping[str, str]) -> StartMethod:
    """Choose it; imports torch and forks the warm parent where that is safe. Raises RankForked in ranks.

    Call it from the main thread, before another one starts.
    """
    why = reason_before_import(settings, environ)
    if why is None:
        # As the ranks get it: it is read while torch is imported.
        os.environ["OMP_NUM_THREADS"] = str(settings.threads_per_rank)
        import_for_ranks(settings.kind)
        _end_pool_of_openblas()
        why = reason_after_import(settings)
    if why is not None:
        logger.info("ranks are spawned: %s", why)
        return StartMethod(None, None if is_expected(settings, environ) else why)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # a fork inherits what is in their buffers

    def prepare() -> None:
        set_title(f"dist-train warm parent node={settings.node} run={settings.run.path}")
        importlib.import_module(_FIRST_OF_RANKS)

    return StartMethod(WarmParent.start(os.environ, prepare), None)


def import_for_ranks(kind: str) -> None:
    """Import what ranks of this kind of target (config, script, module) need; once in a process."""
    with frozen_imports():
        import torch._dynamo  # noqa: F401 - every optimizer of torch imports it

        for name in _IMPORTS_OF_CONFIGS if kind == "config" else ():
            importlib.import_module(name)


def _end_pool_of_openblas() -> None:
    """Fork once: OpenBLAS, which starts threads while numpy is imported, ends them at a fork."""
    if len(os.listdir("/proc/self/task")) == 1:
        return
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
