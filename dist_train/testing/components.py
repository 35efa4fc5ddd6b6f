"""When a test may be left out because a real component (Slurm, a Kubernetes API) is not there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Literal

ALLOW_SKIP = "DIST_TRAIN_ALLOW_SKIP"
# A skip's reason begins with it where the user has allowed it; the count at the end looks for it.
ALLOWED = f"{ALLOW_SKIP}="


def in_ci(environ: Mapping[str, str] | None = None) -> bool:
    """Whether this is continuous integration, where nothing may be left out unsaid."""
    environ = os.environ if environ is None else environ
    return environ.get("CI", "").lower() in ("1", "true", "yes")


def apt_may_run() -> bool:
    """Whether this user may install Debian packages, so that nothing needs to be missing."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def allowed_skips(environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """The components that DIST_TRAIN_ALLOW_SKIP names, separated by commas."""
    environ = os.environ if environ is None else environ
    return frozenset(word.strip() for word in environ.get(ALLOW_SKIP, "").split(",") if word.strip())


def when_missing(
    component: str, environ: Mapping[str, str] | None = None, *, installable: bool | None = None
) -> Literal["allowed", "fail", "skip"]:
    """What becomes of a test whose component is missing.

    Args:
        component: its short name, as DIST_TRAIN_ALLOW_SKIP takes it.
        environ: default the process's.
        installable: whether it could have been installed here; default: whether apt may run.
    """
    if component in allowed_skips(environ):
        return "allowed"
    if installable is None:
        installable = apt_may_run()
    return "fail" if in_ci(environ) or installable else "skip"


def missing_text(component: str, reason: str) -> str:
    """What a failing test says of a missing component."""
    return (
        f"{component} is missing: {reason}\n"
        f"With CI=true, or where apt may run as root, that is a failure; "
        f"{ALLOW_SKIP}={component} makes it a counted skip."
    )
