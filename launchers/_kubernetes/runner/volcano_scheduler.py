"""TorchX's scheduler for Volcano with our methods.

A module of its own: importing TorchX's scheduler needs the kubernetes client, which the other kinds do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torchx.schedulers.kubernetes_scheduler import KubernetesScheduler

from launchers._kubernetes.api.kinds import VOLCANO_JOB, Kind
from launchers._kubernetes.runner.scheduler import SchedulerInputs, SchedulerMixin


class VolcanoScheduler(SchedulerMixin, KubernetesScheduler):  # type: ignore[misc]
    """Options and job form of TorchX (see manifest/volcano.py); requests, timeouts and errors of ours."""

    kinds: ClassVar[Mapping[str, Kind]] = {"volcano": VOLCANO_JOB}

    def __init__(self, session_name: str, inputs: SchedulerInputs) -> None:
        super().__init__(session_name)
        self.inputs = inputs
