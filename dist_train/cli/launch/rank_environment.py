"""The ranks' environment: variables by --env and --secret, and the number of CPU threads."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dist_train import env
from dist_train.cli.launch.arguments import LaunchArguments
from dist_train.cli.launch.device_choice import Devices
from dist_train.errors import ConfigError, UsageError
from dist_train.jobs.launcher import Launcher
from dist_train.jobs.machine import usable_cores

if TYPE_CHECKING:
    from dist_train.config.launch_section import LaunchConfig
    from dist_train.config.schema import RunConfig


def threads_per_rank(
    config: RunConfig | None, launch: LaunchConfig, devices: Devices, environ: Mapping[str, str]
) -> tuple[int, tuple[str, ...]]:
    """CPU threads per rank, and a notice on their origin.

    The number changes the bits of sums, so it is resolved once, here, and stored with the run; 0 with
    --bind, whose cores only a node's agent knows: the first attempt's number holds for all later ones.

    Args:
        environ: variables of the ranks by --env and launch.env, which come before this process's own.

    Raises:
        ConfigError: `threads_per_rank` of the config and OMP_NUM_THREADS in `environ` differ; or the latter
            is no number.
    """
    if config is not None and config.threads_per_rank is not None:
        return config.threads_per_rank, _notice_of_other(config.threads_per_rank, environ)
    given = environ.get("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", ""))
    if given.isdecimal() and int(given) > 0:
        return int(given), (f"threads per rank: {given} (OMP_NUM_THREADS)",)
    if given and not re.fullmatch(r"\s*[0-9]+(\s*,\s*[0-9]+)*\s*", given):  # 4,2: nested regions
        raise ConfigError(
            f"OMP_NUM_THREADS={given!r} is no number of threads", hint="unset it, or OMP_NUM_THREADS=1"
        )
    if devices.device == "cpu":
        default = "threads per rank: 1 (the default on CPU; threads_per_rank or OMP_NUM_THREADS changes it)"
        return 1, (default,)
    if launch.bind != "none":
        return 0, (f"threads per rank: as many as a rank has cores (--bind {launch.bind})",)
    if launch.launcher != "local":
        # This machine's cores are not those of the nodes.
        threads = launch.cpus_per_gpu or 1
        return threads, (f"threads per rank: {threads} (--cpus-per-gpu; threads_per_rank changes it)",)
    cores = usable_cores()
    ranks = launch.nodes * devices.procs  # simulated nodes share this machine
    threads = max(1, cores.amount // ranks)
    origin = f"{cores.amount} cores, {cores.reason} / {ranks} ranks"
    return threads, (f"threads per rank: {threads} ({origin})",)


def _notice_of_other(threads: int, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Refuse another OMP_NUM_THREADS of the ranks; say that another one of the shell is not used."""
    asked, shells = environ.get("OMP_NUM_THREADS"), os.environ.get("OMP_NUM_THREADS")
    if asked is not None and asked != str(threads):
        raise ConfigError(
            f"the config has threads_per_rank: {threads}, and the ranks' environment OMP_NUM_THREADS={asked}",
            cause="the number of threads changes the bits of sums, and only one of them can hold",
            hint=f"give the override threads_per_rank={asked}, or no OMP_NUM_THREADS in --env and launch.env",
        )
    if asked is None and shells is not None and shells != str(threads):
        unused = f"this shell's OMP_NUM_THREADS={shells} is not used"
        return (f"threads per rank: {threads} (threads_per_rank; {unused})",)
    return ()


def rank_environment(arguments: LaunchArguments, launch: LaunchConfig) -> tuple[tuple[str, str], ...]:
    """Variables of the config's launch section, and above them --env; sorted by name."""
    typed: dict[str, str] = {}
    for word in arguments.options.get("env", ()):
        name, value = _env_variable(word)
        if typed.setdefault(name, value) != value:
            raise UsageError(f"--env {name} is given twice: {typed[name]} and {value}", hint="give it once")
    for name in launch.env:
        _refuse_own_variable("launch.env", name)
    return tuple(sorted({**launch.env, **typed}.items()))


def _env_variable(word: str) -> tuple[str, str]:
    from dist_train.config import is_secret_name

    name, equals, value = word.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise UsageError(f"--env {word!r} is not of the form NAME=VALUE")
    if is_secret_name(name):
        raise UsageError(
            f"--env {name}=… looks like a secret, and the plan is written into the run directory",
            hint=f"hand it over with --secret {name}",
        )
    _refuse_own_variable("--env", name)
    return name, value


def _refuse_own_variable(where: str, name: str) -> None:
    if name.startswith("DIST_TRAIN_") and name not in env.SET_BY_USERS:
        raise UsageError(f"{where} {name}: variables DIST_TRAIN_* are dist-train's own")


def secret_names(arguments: LaunchArguments, launcher: Launcher) -> tuple[str, ...]:
    """Names of --secret, never values; a secret that is missing is found now, not by a rank."""
    names = tuple(dict.fromkeys(arguments.options.get("secret", ())))
    if launcher.holds_secrets:
        return names  # the values are in the cluster, and this shell need not have them
    for name in names:
        if name not in os.environ:
            raise ConfigError(
                f"--secret {name}: the environment has no variable of this name",
                hint=f"export {name}=… in this shell first; its value is written nowhere",
            )
    return names
