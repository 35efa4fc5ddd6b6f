"""The process title, as `ps` shows it."""

from __future__ import annotations

import os


def set_title(text: str) -> None:
    """Set the process title without changing /proc/PID/environ.

    setproctitle would write over the environment's memory; the run id in there is how processes of
    a run are found (SPT_NOENV, setproctitle's README). The short name (comm) has no blank: Slurm's
    proctrack/linuxproc reads /proc/PID/stat word by word, and would never signal a process with one.
    """
    before = os.environ.get("SPT_NOENV")
    os.environ["SPT_NOENV"] = "1"
    from setproctitle import setproctitle, setthreadtitle

    setproctitle(text)
    setthreadtitle("dist-train")
    if before is None:
        del os.environ["SPT_NOENV"]
