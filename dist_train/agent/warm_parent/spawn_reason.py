"""Why the ranks of a run must be spawned: where a fork would not be what a new process is."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from dist_train import env
from dist_train.agent.settings import Settings
from dist_train.agent.warm_parent.hiding_files import hiding_files
from dist_train.prewarm.early_variables import changes_path, named_in

SPAWN = "spawn"


def reason_before_import(settings: Settings, environ: Mapping[str, str]) -> str | None:
    """Say what is known before torch is imported; None if nothing is against a fork."""
    if environ.get(env.START_METHOD) == SPAWN:
        return f"{env.START_METHOD}={SPAWN}"
    if sys.platform != "linux":
        return "only Linux can give a rank to another parent"
    if settings.device != "cpu":
        return f"device {settings.device}: CUDA in a fork of a process that has imported torch is not proven"
    if environ.get("LD_PRELOAD"):
        return "LD_PRELOAD is set, and its library may not survive a fork"
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return "a debugger or profiler is active"
    if settings.kind == "script":
        return _reason_in_script(Path(settings.value))
    return None


def is_expected(settings: Settings, environ: Mapping[str, str]) -> bool:
    """Whether the user has asked for spawned ranks, or nothing in the run can change that they are."""
    return environ.get(env.START_METHOD) == SPAWN or settings.device != "cpu" or sys.platform != "linux"


def reason_after_import(settings: Settings) -> str | None:
    """Say what is known once torch is imported and one thread is left; None if nothing is against a fork."""
    if settings.kind == "module" and settings.value in sys.modules:
        return f"the module {settings.value} has been imported already"
    if why := _reason_in_folder(settings):
        return why
    threads = len(os.listdir("/proc/self/task"))
    return f"{threads} threads run after the import of torch" if threads > 1 else None


def _reason_in_script(script: Path) -> str | None:
    try:
        text = script.read_text(errors="replace")
    except OSError:
        return None  # the rank says so
    if changes_path(text):
        return "the script changes sys.path, and may so choose other modules than those imported already"
    name = named_in(text)
    return name and f"the script names {name}, which is read while torch is imported"


def _reason_in_folder(settings: Settings) -> str | None:
    folder = _first_on_path(settings)
    hiding = list(hiding_files(folder).values())
    if not hiding:
        return None
    if settings.kind == "config":  # there dist-train is the program, and has imported some before the config
        return f"{hiding[0]} in {folder} has the name of a module that dist-train imports: rename it"
    return (
        f"{hiding[0]} in {folder} hides the module of that name, as under python: rename it if it should not"
    )


def _first_on_path(settings: Settings) -> Path:
    """The folder that a rank has first on sys.path."""
    if settings.kind == "script":
        return Path(settings.value).resolve().parent
    return Path(settings.folder if settings.kind == "config" else os.getcwd())
