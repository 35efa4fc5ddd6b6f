"""Bind a rank to the CPUs that its agent chose, before anything starts threads in it.

What a rank starts (loader workers, torch's threads) inherits its cores. Without what the agent needs for its
choice: that is a fifth of a spawned rank's start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from dist_train import env
from dist_train.errors import ConfigError
from dist_train.rundir.cpu_list import cpu_list, parse_cpu_list


def bind_to_cpus(environ: Mapping[str, str]) -> None:
    """Bind this process, a rank, to the CPUs that its agent chose, if it did; raises ConfigError."""
    text = environ.get(env.CPUS, "")
    if not text:
        return
    try:
        os.sched_setaffinity(0, parse_cpu_list(text))
        got = os.sched_getaffinity(0)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"this rank cannot be bound to the CPUs {text}: {error}", hint="resume it with --bind none"
        ) from None
    if got != parse_cpu_list(text):
        # The kernel takes what its control group has of them, without an error.
        raise ConfigError(
            f"this rank was to be bound to the CPUs {text}, and the kernel gave it {cpu_list(got)}",
            cause="the CPUs of this job have changed since its agent began",
            hint="resume it with --bind none",
        )
