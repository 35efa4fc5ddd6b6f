"""Decide whether a test may be skipped because a component (Slurm, a Kubernetes API) is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Literal

ALLOW_SKIP = "DIST_TRAIN_ALLOW_SKIP"
# Prefix of the reason of a skip that the user has allowed; the final report counts these.
ALLOWED = f"{ALLOW_SKIP}="


def in_ci(environ: Mapping[str, str] | None = None) -> bool:
    """Whether this is continuous integration (CI=true), where unexpected skips are failures."""
    environ = os.environ if environ is None else environ
    return environ.get("CI", "").lower() in ("1", "true", "yes")


def apt_may_run() -> bool:
    """Whether this user can install Debian packages."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def allowed_skips(environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """Components listed in DIST_TRAIN_ALLOW_SKIP, separated by commas."""
    environ = os.environ if environ is None else environ
    return frozenset(name.strip() for name in environ.get(ALLOW_SKIP, "").split(",") if name.strip())


def when_missing(
    component: str, environ: Mapping[str, str] | None = None, *, installable: bool | None = None
) -> Literal["allowed", "fail", "skip"]:
    """Outcome of a test whose component is missing.

    Args:
        component: its short name, as in DIST_TRAIN_ALLOW_SKIP.
        environ: default: os.environ.
        installable: whether it could have been installed here; default: whether apt may run.
    """
    if component in allowed_skips(environ):
        return "allowed"
    if installable is None:
        installable = apt_may_run()
    return "fail" if in_ci(environ) or installable else "skip"


def missing_text(component: str, reason: str) -> str:
    """Failure message for a missing component."""
    return (
        f"{component} is missing: {reason}\n"
        f"With CI=true, or where apt may run as root, that is a failure; "
        f"{ALLOW_SKIP}={component} makes it a counted skip."
    )
