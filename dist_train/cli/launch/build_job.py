"""From the arguments of `launch` to one JobSpec; everything is validated before any file is written."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dist_train.cli.launch.arguments import LaunchArguments
from dist_train.cli.launch.device_choice import choose_devices
from dist_train.cli.launch.find_target import find_target, name_of
from dist_train.cli.launch.launch_options import OptionGroup
from dist_train.cli.launch.launcher_options import (
    launcher_options,
    refuse_foreign_options,
    refuse_unsupported_options,
)
from dist_train.cli.launch.local_rank_flag import local_rank_flag
from dist_train.cli.launch.log_limit_notice import log_limit_notice
from dist_train.cli.launch.profiled_ranks import refuse_unfit_profile
from dist_train.cli.launch.rank_cores import refuse_unfit_binding
from dist_train.cli.launch.rank_environment import rank_environment, secret_names, threads_per_rank
from dist_train.cli.launch.shown_ranks import shown_ranks
from dist_train.cli.launch.strategy_check import ConfigSource, check_strategy
from dist_train.cli.run.bundled_example import stands_for_bundled
from dist_train.cli.run.find_run import ROOT
from dist_train.errors import ConfigError, UsageError
from dist_train.jobs.duration import seconds
from dist_train.jobs.launcher import Launcher, load_launcher
from dist_train.jobs.spec import JobSpec, Target
from dist_train.rundir.log_text.log_parts import parse_log_limit

if TYPE_CHECKING:
    from pydantic import BaseModel

    from dist_train.config.launch_section import LaunchConfig
    from dist_train.config.schema import RunConfig

# Options of the command line that are fields of the config's launch section too.
_CONFIG_FLAGS = (
    *("launcher", "nodes", "gpus_per_node", "device", "max_restarts", "restart_on", "init_method"),
    *("time", "mem", "cpus_per_gpu", "log_limit", "bind", "profile", "profile_ranks"),
)


@dataclass(frozen=True)
class BuiltJob:
    """A job that may be submitted.

    Args:
        spec: its run_dir does not exist yet.
        options: of the launcher.
        stem: the run's name, less the number that makes it unique.
        notices: lines for stderr.
        is_named: whether --name or --run-dir chose the directory; else it is the first free `stem-N`.
        origins: of each value of its config, by dotted path.
    """

    spec: JobSpec
    launcher: Launcher
    options: BaseModel
    stem: str
    notices: tuple[str, ...]
    is_named: bool
    origins: Mapping[str, str]


def build_job(arguments: LaunchArguments, groups: list[OptionGroup]) -> BuiltJob:
    """Resolve target, config, sizes, device and launcher; raise the error that names what is wrong."""
    typed = arguments.options
    _refuse_ambiguous(arguments)
    target, target_notices = find_target(arguments)
    config, launch, config_yaml, origins = _read_config(arguments, target)
    refuse_foreign_options(arguments, groups, launch.launcher)
    launcher = load_launcher(launch.launcher)
    refuse_unsupported_options(arguments, launcher)
    devices = choose_devices(typed.get("gpus"), launch)
    environ = rank_environment(arguments, launch)
    threads, threads_notices = threads_per_rank(config, launch, devices, dict(environ))
    flag, flag_notices = local_rank_flag(typed.get("legacy_local_rank"), target)
    stem = typed.get("name") or (config.name if config else None) or name_of(target)
    _check_name(stem)
    spec = JobSpec(
        name=stem,
        run_id=typed.get("run_id") or f"{stem}-{secrets.token_hex(3)}",
        run_dir=Path(typed.get("run_dir", ROOT / stem)).absolute(),
        target=target,
        nodes=launch.nodes,
        procs_per_node=devices.procs,
        device=devices.device,
        threads_per_rank=threads,
        max_restarts=launch.max_restarts,
        restart_on=launch.restart_on,
        init_method=launch.init_method,
        env=environ,
        secrets=secret_names(arguments, launcher),
        time_limit_s=seconds(launch.time) if launch.time else None,
        grace_s=config.resilience.grace_s if config else JobSpec.grace_s,
        show_ranks=shown_ranks(str(typed.get("show_ranks", "0")), launch.nodes * devices.procs),
        interface=typed.get("interface"),
        accept_code_change=bool(typed.get("accept_code_change")),
        local_rank_flag=flag,
        gpus=tuple(gpu.uuid for gpu in devices.gpus),
        gpu_vendor=devices.gpus[0].vendor if devices.gpus else "nvidia",
        resources=_resources(launch),
        log_limit_bytes=parse_log_limit(launch.log_limit),
        bind=launch.bind,
        profile=launch.profile,
        profile_ranks=launch.profile_ranks,
        config_yaml=config_yaml,
    )
    refuse_unfit_binding(spec, launcher.name)
    refuse_unfit_profile(spec)
    options = launcher_options(arguments, groups, launch, launcher, origins)
    notices = (*target_notices, *devices.notices, *threads_notices, *flag_notices)
    if config is not None:
        source = ConfigSource(config_yaml or "", str(target.folder))
        fit = check_strategy(
            config.strategy, config.trainer.accumulate, spec.world_size, spec.device, origins, source
        )
        notices += () if fit.unchecked is None else (fit.unchecked,)
    if launcher.run_dir_on_nodes(spec) is None:
        notices = (*notices, *log_limit_notice(spec.log_limit_bytes, spec.run_dir))
    is_named = "run_dir" in typed or bool(typed.get("name"))
    return BuiltJob(spec, launcher, options, stem, notices, is_named, origins)


def _refuse_ambiguous(arguments: LaunchArguments) -> None:
    if "cpus_per_task" in arguments.options:
        raise UsageError(
            "--cpus-per-task is ambiguous here: a task is a whole node for us, a rank for others",
            hint="--cpus-per-gpu N gives every rank N cores",
        )
    if arguments.options.get("detach") and arguments.options.get("dry_run"):
        raise UsageError(
            "--dry-run submits nothing, so there is nothing to --detach from", hint="give one of them"
        )


def _read_config(
    arguments: LaunchArguments, target: Target
) -> tuple[RunConfig | None, LaunchConfig, str | None, Mapping[str, str]]:
    """The config (None for a script), its launch section with the options typed, its text, its origins."""
    flags = {name: arguments.options[name] for name in _CONFIG_FLAGS if name in arguments.options}
    if target.kind != "config":
        return None, _launch_section(flags), None, {}
    from dist_train.config import check_config, dump_config, load_config

    # Errors name the path as it was typed; that of the bundled example was not.
    typed = arguments.target is not None and not stands_for_bundled(arguments.target)
    path = Path(str(arguments.target)) if typed else Path(target.value)
    with_origin = {f"launch.{name}": (value, arguments.typed[name]) for name, value in flags.items()}
    resolved = load_config(path, arguments.overrides, with_origin)
    check_config(resolved.config, Path(target.folder), resolved.origins)
    text = dump_config(resolved.config)
    return resolved.config, resolved.config.launch, text, resolved.origins


def _launch_section(flags: dict[str, object]) -> LaunchConfig:
    from pydantic import ValidationError

    from dist_train.config.launch_section import LaunchConfig
    from dist_train.config.problems import what_is_wrong

    try:
        return LaunchConfig.model_validate(flags)
    except ValidationError as error:
        first = error.errors()[0]
        flag = str(first["loc"][0]).replace("_", "-")
        raise ConfigError(f"--{flag} {first['input']}: {what_is_wrong(first)}") from None


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ConfigError(
            f"the name {name!r} cannot be used",
            cause="it becomes a folder, and part of names on the cluster",
            hint="letters, digits, dots, dashes and underscores; it begins with a letter or digit",
        )


def _resources(launch: LaunchConfig) -> tuple[tuple[str, str], ...]:
    wanted = {"mem": launch.mem, "cpus_per_gpu": launch.cpus_per_gpu}
    return tuple((name, str(value)) for name, value in wanted.items() if value is not None)
