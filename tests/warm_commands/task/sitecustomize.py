"""In a task of Slurm: have the test's command server fork what this interpreter was started for.

Every interpreter imports a module of this name; only a task's has its folder in PYTHONPATH
(tests/slurm/slurm_warm_tasks.py). An agent or a script that a fork can be is forked, with this task's output,
folder, environment, CPUs and limits; this process, Slurm's child, passes each signal on to it and all its
descendants, as Slurm sends one to every process of a step (proctrack/linuxproc), and ends as it ends. If
this process is killed, the server kills them.
"""

from __future__ import annotations

import os
import sys

_AGENT = ["-P", "-m", "dist_train.agent"]


def _remove_from_path() -> None:
    """Undo what the task's prolog has added: the agent and its ranks see their own PYTHONPATH."""
    folder = os.path.dirname(__file__)
    sys.path[:] = [each for each in sys.path if each != folder]
    others = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each not in ("", folder)]
    if others:
        os.environ["PYTHONPATH"] = os.pathsep.join(others)
    else:
        os.environ.pop("PYTHONPATH", None)


def _words_of_a_fork() -> list[str] | None:
    """The command line, where it is an agent's or a script's that may be forked."""
    words = [each for each in sys.orig_argv if each != "-u"]
    one_thread = "--threads-per-rank" in words and words[words.index("--threads-per-rank") + 1] == "1"
    is_agent = words[1:4] == _AGENT and one_thread
    if os.environ.get("DIST_TRAIN_TESTING_COLD") or not (is_agent or words[1].endswith(".py")):
        return None
    return [sys.executable, *words[1:]]


_remove_from_path()
_words = _words_of_a_fork() if len(sys.orig_argv) > 1 else None
if _words is not None:
    _tests = os.path.join(os.path.dirname(os.path.realpath(__file__)), os.pardir)
    sys.path.insert(0, _tests)
    from slurm_task import stand_for

    sys.path.remove(_tests)
    stand_for(_words, os.path.join(os.path.dirname(__file__), "server"))
