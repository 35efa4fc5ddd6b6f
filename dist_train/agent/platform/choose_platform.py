"""The Platform of a launcher."""

from __future__ import annotations

from dist_train.agent.platform.base_platform import Platform
from dist_train.agent.platform.kubernetes_platform import KubernetesPlatform
from dist_train.agent.platform.local_platform import LocalPlatform
from dist_train.agent.platform.slurm_platform import SlurmPlatform

_PLATFORMS: dict[str, Platform] = {
    "local": LocalPlatform(),
    "slurm": SlurmPlatform(),
    "kubernetes": KubernetesPlatform(),
}


def platform_of(launcher: str) -> Platform:
    """Choose by the launcher's name (DIST_TRAIN_LAUNCHER); another launcher's agents get the defaults."""
    return _PLATFORMS.get(launcher) or Platform()
