"""In a fork of the command server: become an agent, or the container or Slurm's task whose command is one."""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
import resource
import runpy
import select
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

_OF_POD = ("net", "uts", "ipc")
_PR_SET_DUMPABLE = 4
# The interpreter adds it where no locale is set (PEP 538).
_COERCED = {"LC_CTYPE": "C.UTF-8"}


def run_agent(argv: Sequence[str], environ: Mapping[str, str], kept: tuple[int, ...] = ()) -> NoReturn:
    """Run `python -P -m dist_train.agent ...` as a new interpreter would.

    Args:
        argv: with the interpreter.
        kept: descriptors that it inherits beside its output.
    """
    from dist_train.agent.warm_parent.process_reset import reset_process
    from dist_train.agent.workers.process_title import set_title

    code = 1
    try:
        with suppress(PermissionError):  # it leads its session already
            os.setsid()
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for name in ("", "dist_train"):
            logging.getLogger(name).handlers.clear()
        reset_process(environ, os.getcwd(), {1: 1, 2: 2, **{each: each for each in kept}})
        set_title(" ".join(argv))
        sys.argv = ["dist_train.agent", *argv[4:]]
        # Leaves in ranks only: an agent ends by os._exit. A rank's script is __main__ to the end, and
        # run_module() would put the former one back.
        runpy._run_module_as_main("dist_train.agent", alter_argv=False)  # type: ignore[attr-defined]
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 0
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    # The interpreter's own end from here: the frames below are the command's, which must not end twice.
    ctypes.pythonapi.Py_Exit(code)
    os._exit(code)


def limit_as_task(request: Mapping[str, Any]) -> None:
    """Take over what Slurm has given one of its tasks: see slurm_task.py."""
    os.umask(request["umask"])
    if os.geteuid() == 0:
        os.setgroups(request["groups"])
    os.setpriority(os.PRIO_PROCESS, 0, request["nice"])
    os.sched_setaffinity(0, request["cpus"])
    for name, (soft, hard) in request["limits"].items():
        resource.setrlimit(getattr(resource, name), (soft, hard))


def kill_with_task(pid: int, held: int) -> None:
    """Wait for this process's end; kill it and its descendants if its task has been killed before.

    Args:
        held: at its end when the task is.
    """
    from warm_commands.slurm_task import tree

    ended = os.pidfd_open(pid)
    ready, _, _ = select.select([ended, held], [], [])
    if ended not in ready:
        for each in tree(pid):
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
    os.close(ended)


def run_container(request: Mapping[str, Any], out: int, err: int, report: int, holder: int) -> NoReturn:
    """Run a container as the kubelet's container_init.py does, but for the exec of its command.

    Args:
        request: the path of the program container_init.py, of the container's spec, and the pid of a process
            in the pod's namespaces.
        report: where container_init.py reports the start.
        holder: pid of the parent; the container ends with it.
    """
    from dist_train.jobs.parent_death_signal import end_with_parent

    try:
        os.setsid()
        end_with_parent(holder, signal.SIGKILL)
        enter_namespaces(int(request["namespaces"]), _OF_POD)
        os.dup2(out, 1)
        os.dup2(err, 2)
        spec = importlib.util.spec_from_file_location("container_init", request["program"])
        assert spec is not None
        assert spec.loader is not None
        program = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(program)
        program.main(request["container"], report, _execute)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def _execute(spec: Mapping[str, Any]) -> NoReturn:
    # Where exec would: /proc/self belongs to the new user only then.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    run_agent(spec["argv"], {**_COERCED, **spec["env"]})


def enter_namespaces(pid: int, kinds: Sequence[str]) -> None:
    """Enter those of a process, by their names in /proc/PID/ns."""
    libc = ctypes.CDLL(None, use_errno=True)
    for kind in kinds:
        descriptor = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
        if libc.setns(descriptor, 0) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"setns {kind}: {os.strerror(number)}")
        os.close(descriptor)
