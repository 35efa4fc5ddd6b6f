"""Why the ranks of a run must be spawned: where a fork would not be what a new process is."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from dist_train import env
from dist_train.agent.settings import Settings
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
    folder = _first_on_path(settings)
    if folder is not None and (name := shadowing_file(folder)):
        return f"{name} in {folder} has the name of a module that is already imported"
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


def _first_on_path(settings: Settings) -> Path | None:
    """The folder that a rank has first on sys.path."""
    if settings.kind == "script":
        return Path(settings.value).resolve().parent
    return Path(settings.folder if settings.kind == "config" else os.getcwd())


def shadowing_file(folder: Path) -> str | None:
    """Return the first file or package there that `import` would have found instead of an imported module."""
    try:
        found = sorted(entry.name for entry in os.scandir(folder))
    except OSError:
        return None
    for name in found:
        module = sys.modules.get(name.split(".")[0])
        if module is None or (name == name.split(".")[0] and not (folder / name / "__init__.py").exists()):
            continue
        if "." in name and not name.endswith((".py", ".so")):
            continue
        spec = getattr(module, "__spec__", None)
        builtin = spec is not None and spec.origin in ("built-in", "frozen")
        file = getattr(module, "__file__", None)
        if not builtin and (file is None or not Path(file).resolve().is_relative_to(folder.resolve())):
            return name
    return None
