"""What `ps` shows of our processes."""

from __future__ import annotations

import os


def set_title(text: str) -> None:
    """Set the process title, leaving /proc/PID/environ alone.

    setproctitle would write over the environment's memory; the run id in there is how processes of
    a run are found (SPT_NOENV, setproctitle's README). The short name (comm) gets no blank: Slurm's
    proctrack/linuxproc reads /proc/PID/stat word by word, and would never signal a process with one.
    """
    before = os.environ.get("SPT_NOENV")
    os.environ["SPT_NOENV"] = "1"
    from setproctitle import setproctitle, setthreadtitle

    setproctitle(text)
    setthreadtitle("dist-train")
    if before is None:
        del os.environ["SPT_NOENV"]
