"""TorchX's own scheduler for Volcano, with a name that is the same every time and our verbs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torchx.schedulers.kubernetes_scheduler import KubernetesScheduler

from launchers._kubernetes.api.kinds import VOLCANO_JOB, Kind
from launchers._kubernetes.runner.scheduler import Verbs, Work


class VolcanoScheduler(Verbs, KubernetesScheduler):  # type: ignore[misc]
    """Its options and its form of the job (see volcano.py); our requests, bounds and words."""

    kinds: ClassVar[Mapping[str, Kind]] = {"volcano": VOLCANO_JOB}

    def __init__(self, session_name: str, work: Work) -> None:
        super().__init__(session_name)
        self.work = work
