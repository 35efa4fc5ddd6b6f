"""Have the interpreter forget an interrupt that was handled."""

from __future__ import annotations


def forget_interrupt() -> None:
    """Keep the exit code of a process that has handled a KeyboardInterrupt.

    One that has passed through exec() of a text (every dataclass is made so) is noted as unhandled, and
    `python -m` then ends itself by SIGINT, whatever its exit code. The next exec() of a text forgets it
    (run_eval_code_obj in CPython's pythonrun.c; Py_RunMain in main.c).
    """
    exec("")
