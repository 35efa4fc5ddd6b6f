"""Whether the import of torch may begin before the command line is parsed, by a look at its words.

The look is cautious: where a word could mean that no agent starts here, or not on the CPU, nothing is begun.
Costs no more than that the import begins later. What is begun in vain is ended before anything is said.
Of `resume` the record of the run says it (resumed_run).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dist_train import env
from dist_train.prewarm.resumed_run import local_spec

# Values of DIST_TRAIN_START_METHOD with which the import begins after planning, as part of the agent's start.
NOT_BEFORE_PLANNING = ("spawn", "fork")
_ENDS_WITHOUT_AGENTS = frozenset({"-h", "--help", "--dry-run", "--detach", "--gpus"})
_GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
_YAML = (".yaml", ".yml")
_DEFAULT_CONFIG = "dist-train.yaml"
_ELSEWHERE = re.compile(r"\blauncher['\"]?\s*[:=]\s*['\"]?(?!local\b)\w")
_ON_GPU = re.compile(r"\bdevice['\"]?\s*[:=]\s*['\"]?cuda")
_METHOD = re.compile(rf"{env.START_METHOD}['\"]?\s*[:=]\s*['\"]?(?:{'|'.join(NOT_BEFORE_PLANNING)})\b")
_METHOD_OF_RUN = re.compile(rf'"{env.START_METHOD}", "(?:{"|".join(NOT_BEFORE_PLANNING)})"')
_THREADS = re.compile(r"^['\"]?threads_per_rank['\"]?\s*[:=]\s*(\d+)", re.MULTILINE)
_THREADS_VARIABLE = re.compile(r"\bOMP_NUM_THREADS['\"]?\s*[:=]\s*['\"]?(\d+)")


@dataclass(frozen=True)
class EarlyImport:
    """An import that may begin now.

    Attributes:
        threads: OMP_NUM_THREADS, which is read meanwhile: what the plan will most likely say.
        for_config: whether ranks run a config, which needs more modules.
    """

    threads: int
    for_config: bool


def choose_import(
    words: Sequence[str], environ: Mapping[str, str], gpu_files: Sequence[str] = _GPU_FILES
) -> EarlyImport | None:
    """Choose by the words after `dist-train`; None where nothing is to begin before planning.

    Args:
        environ: this process's environment.
        gpu_files: files that exist where a machine has GPUs.
    """
    if list(words[:1]) not in (["launch"], ["resume"]) or not _is_plain_process(environ):
        return None
    spelled = [word.replace("_", "-") if word.startswith("--") else word for word in words]
    if any(word.partition("=")[0] in _ENDS_WITHOUT_AGENTS for word in spelled):
        return None
    if words[0] == "resume":
        return _of_resumed(local_spec(words[1:]))
    device = _value_of("--device", spelled)
    if _value_of("--launcher", spelled) not in (None, "local") or device not in (None, "cpu"):
        return None
    if device is None and any(Path(name).exists() for name in gpu_files):
        return None
    text = _config_text(words)
    said = "\n".join([text or "", *words])
    if _ELSEWHERE.search(said) or _METHOD.search(said) or (device is None and _ON_GPU.search(said)):
        return None
    return EarlyImport(_threads(said, environ), text is not None)


def _of_resumed(spec: Mapping[str, Any] | None) -> EarlyImport | None:
    """What the record of a run asks for; None where its agents or ranks start otherwise."""
    if spec is None or spec.get("device") != "cpu" or _METHOD_OF_RUN.search(json.dumps(spec.get("env"))):
        return None
    threads, target = spec.get("threads_per_rank"), spec.get("target")
    if not isinstance(threads, int) or threads < 1 or not isinstance(target, dict):
        return None
    return EarlyImport(threads, target.get("kind") == "config")


def _is_plain_process(environ: Mapping[str, str]) -> bool:
    """Whether a new interpreter here would be what an agent is: see warm_parent/spawn_reason.py."""
    return (
        sys.platform == "linux"
        and environ.get(env.START_METHOD) not in NOT_BEFORE_PLANNING
        and not environ.get("LD_PRELOAD")
        and sys.gettrace() is None
        and sys.getprofile() is None
        and "torch" not in sys.modules  # a process that has imported it already starts agents in its own way
    )


def _value_of(option: str, words: Sequence[str]) -> str | None:
    """The option's last value, wherever it stands; of a script's own option too: that is only cautious."""
    found = None
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word == option:
            found = after
        elif word.startswith(f"{option}="):
            found = word.partition("=")[2]
    return found


def _config_text(words: Sequence[str]) -> str | None:
    """The text of the config; empty for the bundled one; None where ranks run a script or a module."""
    named = next((word for word in words[1:] if word.endswith((*_YAML, ".py"))), None)
    if "-m" in words or (named is not None and named.endswith(".py")):
        return None
    path = Path(named or _DEFAULT_CONFIG)
    try:
        # What can be read only once is left to the one who needs it.
        return path.read_text(errors="replace") if path.is_file() else ""
    except OSError:
        return ""


def _threads(said: str, environ: Mapping[str, str]) -> int:
    found = [*_THREADS.findall(said)] or [*_THREADS_VARIABLE.findall(said)]
    text = found[-1] if found else environ.get("OMP_NUM_THREADS", "")
    return int(text) if text.isdecimal() and int(text) > 0 else 1
