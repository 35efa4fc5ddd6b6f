"""From the words of `launch` to one JobSpec: everything is validated before anything is made."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dist_train import env, registry
from dist_train.cli.arguments import OptionGroup, Words
from dist_train.cli.bundled import bundled_example, stands_for_bundled
from dist_train.cli.gpu_choice import Devices, choose_devices
from dist_train.cli.legacy import local_rank_flag
from dist_train.errors import ConfigError, NotFoundError, UsageError
from dist_train.jobs.duration import seconds
from dist_train.jobs.launcher import Launcher
from dist_train.jobs.machine import usable_cores
from dist_train.jobs.spec import JobSpec, Target

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

    from dist_train.config.launch import LaunchConfig
    from dist_train.config.schema import RunConfig

_CONFIG_FLAGS = (
    "launcher",
    "nodes",
    "gpus_per_node",
    "device",
    "max_restarts",
    "restart_on",
    "init_method",
    "time",
    "mem",
    "cpus_per_gpu",
)
_OWN_DIR = Path("runs")


@dataclass(frozen=True)
class Request:
    """What is to be launched: the spec (its run_dir not made yet) and all that goes with it."""

    spec: JobSpec
    launcher: Launcher
    options: BaseModel
    stem: str
    notices: tuple[str, ...]
    fixed_dir: bool


def build(words: Words, groups: list[OptionGroup]) -> Request:
    """Resolve target, config, sizes, device and launcher; raises the error that says what is wrong."""
    _refuse_ambiguous(words)
    target, notices = _find_target(words)
    config, launch, config_yaml = _read_config(words, target)
    _refuse_foreign_options(words, groups, launch.launcher)
    launcher = registry.load("launchers", launch.launcher)
    assert isinstance(launcher, Launcher)
    _refuse_without_meaning(words, launcher)
    _own_config(launch, launcher)
    devices = choose_devices(words.options.get("gpus"), launch)
    threads, told = _threads(config, launch, devices)
    legacy, hint = local_rank_flag(words.options.get("legacy_local_rank"), target)
    stem = words.options.get("name") or (config.name if config else None) or _stem(target)
    _check_name(stem)
    spec = JobSpec(
        name=stem,
        run_id=words.options.get("run_id") or f"{stem}-{secrets.token_hex(3)}",
        run_dir=Path(),
        target=target,
        nodes=launch.nodes,
        procs_per_node=devices.procs,
        device=devices.device,
        threads_per_rank=threads,
        max_restarts=launch.max_restarts,
        restart_on=launch.restart_on,
        init_method=launch.init_method,
        env=_environment(words, launch),
        secrets=_secrets(words, launcher),
        time_limit_s=seconds(launch.time) if launch.time else None,
        grace_s=config.resilience.grace_s if config else 30.0,
        show_ranks=_show_ranks(words),
        interface=words.options.get("interface"),
        accept_code_change=bool(words.options.get("accept_code_change")),
        local_rank_flag=legacy,
        gpus=tuple(gpu.uuid for gpu in devices.gpus),
        resources=tuple(
            (k, str(v)) for k in ("mem", "cpus_per_gpu") if (v := getattr(launch, k)) is not None
        ),
        config_yaml=config_yaml,
    )
    spec, fixed = _with_run_dir(spec, words)
    options = _launcher_options(words, groups, launch, launcher)
    return Request(spec, launcher, options, stem, (*notices, *devices.said, *told, *hint), fixed)


def _refuse_ambiguous(words: Words) -> None:
    if "cpus_per_task" in words.options:
        raise UsageError(
            "--cpus-per-task is ambiguous here: a task is a whole node for us, a rank for others",
            mend="--cpus-per-gpu N gives every rank N cores",
        )
    if words.options.get("detach") and words.options.get("dry_run"):
        raise UsageError(
            "--dry-run submits nothing, so there is nothing to --detach from", mend="give one of them"
        )


def _find_target(words: Words) -> tuple[Target, tuple[str, ...]]:
    if words.module is not None:
        return Target("module", words.module, words.args, str(Path.cwd())), _stolen(words)
    if words.target is None:
        return _default_target(words)
    if stands_for_bundled(words.target):
        return _bundled(f"no {words.target} here: taking the one that comes with dist-train")
    path = Path(words.target)
    if words.target.endswith((".yaml", ".yml")):
        return Target("config", str(path.absolute()), (), str(path.absolute().parent)), ()
    if not path.is_file():
        raise _no_such_target(path)
    return Target("script", str(path.absolute()), words.args, str(path.absolute().parent)), _stolen(words)


def _default_target(words: Words) -> tuple[Target, tuple[str, ...]]:
    here = Path("dist-train.yaml")
    if here.is_file():
        return Target("config", str(here.absolute()), (), str(here.absolute().parent)), ()
    if words.options.get("launcher", "local") != "local":
        raise UsageError("no TARGET", mend="dist-train launch CONFIG.yaml, or SCRIPT.py, or -m MODULE")
    return _bundled("no TARGET and no ./dist-train.yaml: training the bundled digits example")


def _bundled(why: str) -> tuple[Target, tuple[str, ...]]:
    path = bundled_example()
    return Target("config", str(path), (), str(path.parent)), (f"{why} ({path})",)


def _no_such_target(path: Path) -> NotFoundError:
    import difflib

    folder = path.parent if path.parent.is_dir() else Path()
    names = [file.name for file in folder.iterdir() if file.suffix in (".py", ".yaml", ".yml")]
    near = difflib.get_close_matches(path.name, names, n=1)
    return NotFoundError(
        f"no such file: {path}",
        cause="TARGET is CONFIG.yaml, SCRIPT.py or -m MODULE",
        mend=f"did you mean {folder / near[0]}?" if near else None,
    )


def _stolen(words: Words) -> tuple[str, ...]:
    """After a script every word is the script's; where it looks like one of ours, say so."""
    ours = {
        "--nodes",
        "-N",
        "--gpus-per-node",
        "--nproc-per-node",
        "--launcher",
        "--max-restarts",
        "--dry-run",
    }
    ours |= {"--name", "--run-dir", "--device", "--time", "--detach", "--init-method"}
    found = [word for word in words.args if word.partition("=")[0].replace("_", "-") in ours]
    if not found:
        return ()
    target = words.module or words.target
    return (f"{found[0]} stands after {target} and goes to it; options of dist-train stand before",)


def _read_config(words: Words, target: Target) -> tuple[RunConfig | None, LaunchConfig, str | None]:
    flags = {
        f"launch.{name}": (words.options[name], words.typed[name])
        for name in _CONFIG_FLAGS
        if name in words.options
    }
    if target.kind == "config":
        from dist_train.config import check_config, dump_config, load_config

        # As it was typed, which is what messages name; the bundled one has no such word.
        typed = words.target is not None and not stands_for_bundled(words.target)
        path = Path(str(words.target)) if typed else Path(target.value)
        resolved = load_config(path, words.overrides, flags)
        check_config(resolved.config, Path(target.folder), resolved.origins)
        return resolved.config, resolved.config.launch, dump_config(resolved.config)
    from pydantic import ValidationError

    from dist_train.config.launch import LaunchConfig

    try:
        return (
            None,
            LaunchConfig(**{name.partition(".")[2]: value for name, (value, _) in flags.items()}),
            None,
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            f"--{str(first['loc'][0]).replace('_', '-')} {first['input']}: {first['msg']}"
        ) from None


def _refuse_foreign_options(words: Words, groups: list[OptionGroup], launcher: str) -> None:
    for group in groups:
        if group.launchers is None or launcher in group.launchers:
            continue
        for option in group.options:
            if option.name in words.options and not _belongs(option.name, groups, launcher):
                raise UsageError(
                    f"{words.typed[option.name]} is an option of the {min(group.launchers)} launcher",
                    cause=f"this job goes to {launcher}",
                    mend=f"add --launcher {min(group.launchers)}, or drop the option",
                )


def _refuse_without_meaning(words: Words, launcher: Launcher) -> None:
    """A common option that this launcher cannot honour is refused, never ignored."""
    for name, why in getattr(launcher, "refuses", {}).items():
        if name in words.options:
            raise UsageError(
                f"{words.typed[name]} means nothing to the {launcher.name} launcher",
                cause=why,
                mend="drop it; in a config's launch section it may stay, for the other launchers",
            )


def _belongs(name: str, groups: list[OptionGroup], launcher: str) -> bool:
    return any(
        group.launchers is not None
        and launcher in group.launchers
        and any(o.name == name for o in group.options)
        for group in groups
    )


def _own_config(launch: LaunchConfig, launcher: Launcher) -> dict[str, Any]:
    section = getattr(launch, launcher.name, {})
    return dict(section) if isinstance(section, Mapping) else {}


def _launcher_options(
    words: Words, groups: list[OptionGroup], launch: LaunchConfig, launcher: Launcher
) -> BaseModel:
    from pydantic import ValidationError

    given = _own_config(launch, launcher)
    for group in groups:
        if group.launchers is not None and launcher.name in group.launchers:
            given |= {
                str(o.name): words.options[str(o.name)] for o in group.options if o.name in words.options
            }
    try:
        return launcher.Options(**given)
    except ValidationError as error:
        told = "; ".join(
            f"{'.'.join(map(str, e['loc']))}: {e['msg']} (got {_shown(e)})" for e in error.errors()
        )
        known = ", ".join(launcher.Options.model_fields) or "none"
        raise ConfigError(
            f"options of the {launcher.name} launcher: {told}", mend=f"it knows: {known}"
        ) from None


def _shown(error: ErrorDetails) -> str:
    """What was given; not where it may be a secret by mistake."""
    return "a text that is not shown" if "secret" in str(error["loc"][:1]) else repr(error["input"])


def _threads(config: RunConfig | None, launch: LaunchConfig, devices: Devices) -> tuple[int, tuple[str, ...]]:
    """CPU threads per rank are part of the bits: resolved once, here, and stored."""
    if config is not None and config.threads_per_rank is not None:
        return config.threads_per_rank, ()
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdigit() and int(given) > 0:
        return int(given), (f"threads per rank: {given} (OMP_NUM_THREADS)",)
    if devices.device == "cpu":
        return 1, (
            "threads per rank: 1 (the default on CPU; threads_per_rank or OMP_NUM_THREADS changes it)",
        )
    if launch.launcher != "local":
        # The cores of this machine say nothing of the nodes'.
        threads = launch.cpus_per_gpu or 1
        return threads, (f"threads per rank: {threads} (--cpus-per-gpu; threads_per_rank changes it)",)
    cores = usable_cores()
    threads = max(1, cores.amount // devices.procs)
    return threads, (
        f"threads per rank: {threads} ({cores.amount} cores, {cores.reason} / {devices.procs} ranks)",
    )


def _environment(words: Words, launch: LaunchConfig) -> tuple[tuple[str, str], ...]:
    from dist_train.config import is_secret_name

    typed: dict[str, str] = {}
    for word in words.options.get("env", ()):
        name, equals, value = word.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UsageError(f"--env {word!r} is not of the form NAME=VALUE")
        if is_secret_name(name):
            raise UsageError(
                f"--env {name}=… looks like a secret, and the plan is written into the run directory",
                mend=f"hand it over with --secret {name}",
            )
        if name.startswith("DIST_TRAIN_") and name != env.INJECT:
            raise UsageError(f"--env {name}: variables DIST_TRAIN_* are dist-train's own")
        if typed.setdefault(name, value) != value:
            raise UsageError(f"--env {name} is given twice: {typed[name]} and {value}", mend="give it once")
    return tuple(sorted({**launch.env, **typed}.items()))


def _secrets(words: Words, launcher: Launcher) -> tuple[str, ...]:
    """Names alone; a secret that is not there is found now, not by a rank."""
    names = tuple(dict.fromkeys(words.options.get("secret", ())))
    if getattr(launcher, "holds_secrets", False):
        return names  # the cluster has the values, and this shell need not
    for name in names:
        if name not in os.environ:
            raise ConfigError(
                f"--secret {name}: the environment has no variable of this name",
                mend=f"export {name}=… in this shell first; its value is written nowhere",
            )
    return names


def _show_ranks(words: Words) -> str:
    text = str(words.options.get("show_ranks", "0"))
    if text != "all" and not re.fullmatch(r"\d+(,\d+)*", text):
        raise UsageError(f"--show-ranks {text!r} is neither `all` nor a list of ranks such as 0,3")
    return text


def _stem(target: Target) -> str:
    name = target.value.rpartition(".")[2] if target.kind == "module" else Path(target.value).stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ConfigError(
            f"the name {name!r} cannot be used",
            cause="it becomes a folder, and part of names on the cluster",
            mend="letters, digits, dots, dashes and underscores; it begins with a letter or digit",
        )


def _with_run_dir(spec: JobSpec, words: Words) -> tuple[JobSpec, bool]:
    asked = words.options.get("run_dir")
    if asked is not None:
        return replace(spec, run_dir=Path(asked).absolute()), True
    if words.options.get("name"):
        return replace(spec, run_dir=(_OWN_DIR / spec.name).absolute()), True
    return replace(spec, run_dir=(_OWN_DIR / spec.name).absolute()), False
