"""A process that has imported modules, and forks commands: the imports are most of the time of a test.

    python -P command_server.py LISTENER MODULE...

All pytest workers of a session use the same one: it is a child of none of them, and ends with the last of
their connections. Where torch is among the modules, the agents of `launch` are forked from the command
likewise, and their ranks from the agents' warm parents. It forks single agents, containers and Slurm's
tasks too (agent_fork.py). What needs other early variables (dist_train/prewarm/early_variables.py) is started
as a user does.
"""

from __future__ import annotations

import atexit
import builtins
import faulthandler
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from dist_train.agent.workers.interpreter_exit import reserve_exit_function

TESTS = str(Path(__file__).resolve().parent.parent)
MESSAGE, READY = b"command", b"ready"
COMMAND, SCRIPT, MODULE, RANK = "command", "script", "module", "rank"
AGENT = ["-P", "-m", "dist_train.agent"]
THREADS = "1"  # per rank; read while torch is imported
# Imported again by each command: it reads KUBECONFIG while it is imported. Without the packages that it is in
# it would be found in them.
READ_VARIABLES = ("kubernetes", "kubernetes.config", "kubernetes.config.kube_config")


class CommandForked(BaseException):
    """Raised in a command after its fork: it leaves the server's frames.

    Its arguments are COMMAND and those after `dist-train`; SCRIPT or RANK, a script and its arguments; or
    MODULE, a module and its arguments.
    """


def main(argv: Sequence[str]) -> None:
    """Serve until the last connection is closed; in a fork run its command."""
    if os.fork():
        os._exit(0)
    reserve_exit_function()
    from dist_train.agent.workers.process_title import set_title

    os.environ["OMP_NUM_THREADS"] = THREADS
    set_title("dist-train test commands")
    _import_all(argv[1:])
    try:
        _serve(socket.socket(fileno=int(argv[0])))
    except CommandForked as command:
        kind, *args = command.args
    if kind == SCRIPT:
        set_title(f"{sys.executable} {args[0]}")
        _run_script(args[0], args[1:])
        return  # and this interpreter ends as the script's
    if kind == MODULE:
        set_title(f"{sys.executable} -P -m {args[0]}")
        faulthandler.enable()
        sys.argv = args
        runpy.run_module(args[0], run_name="__main__", alter_sys=True)
        return
    if kind == RANK:
        from dist_train.agent.workers import worker_main

        worker_main.main([str(os.getppid()), "script", *args])
    set_title(f"{sys.prefix}/bin/dist-train")
    import dist_train.cli.main

    if "torch" in sys.modules:
        importlib.import_module("launchers.local").__dict__["subprocess"] = _ForkedAgents()
    sys.argv = [str(dist_train.cli.main.__file__), *args]
    _end_without_torch(dist_train.cli.main.main)


def _end_without_torch(run: Callable[[], None]) -> NoReturn:
    """Run to the end, exit functions included, but free no modules: a real command never imports torch.

    To free torch's takes 0.3 s of CPU.
    """
    code: object = 0
    try:
        run()
    except SystemExit as leaving:
        code = leaving.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined] # joins threads, as the interpreter does
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        found = finalizer.peek()
        if found is not None and found[1].__module__.startswith("torch."):
            finalizer.atexit = False
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(int(code or 0) & 0xFF)


def _run_script(path: str, args: Sequence[str]) -> None:
    """Run it as `python PATH ARGS` does: it is `__main__` to the end of the process."""
    module = ModuleType("__main__")
    module.__dict__.update(__file__=os.path.abspath(path), __builtins__=builtins)
    sys.modules["__main__"] = module
    sys.argv = [path, *args]
    sys.path.insert(0, str(Path(path).resolve().parent))
    exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), module.__dict__)


def _import_all(modules: Sequence[str]) -> None:
    from dist_train.jobs.frozen_imports import frozen_imports

    with frozen_imports():
        for module in modules:
            importlib.import_module(module)
    for name in READ_VARIABLES:
        sys.modules.pop(name, None)
    pid = os.fork()  # OpenBLAS ends its threads at a fork
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    from forked_workers.huge_pages import use_huge_pages

    use_huge_pages()


def _serve(listener: socket.socket) -> None:
    listener.setblocking(False)
    connections: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([listener, *connections], [], [])
        with suppress(ChildProcessError):  # holders of commands that have ended
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if listener in ready:
            _accept(listener, connections)
        for descriptor in [each for each in ready if each in connections]:
            _answer(connections[descriptor], [listener, *connections.values()], connections)
        if not connections and not _accept(listener, connections):
            os._exit(0)


def _accept(listener: socket.socket, connections: dict[int, socket.socket]) -> bool:
    try:
        connection, _ = listener.accept()
    except BlockingIOError:
        return False
    connections[connection.fileno()] = connection
    connection.setblocking(True)
    with suppress(ConnectionError):  # found at its next reading
        connection.send(READY)
    return True


def _answer(
    connection: socket.socket, own: Sequence[socket.socket], connections: dict[int, socket.socket]
) -> None:
    """Fork what one message asks for, or forget a connection that has been closed."""
    message, received = b"", list[int]()
    with suppress(ConnectionError):
        message, received, _, _ = socket.recv_fds(connection, len(MESSAGE), 16)
    if message != MESSAGE:
        del connections[connection.fileno()]
        connection.close()
        return
    body, out, err, status, held, *more = received
    with open(body, "rb") as file:
        file.seek(0)
        request = json.load(file)
    if may_become(request) and os.fork() == 0:
        for each in own:
            each.close()
        _hold(request, out, err, status, held, more)
    for descriptor in (out, err, status, held, *more):
        os.close(descriptor)


def may_become(request: Mapping[str, Any]) -> bool:
    """Whether a fork of this process can be what is asked for; a task asks without knowing."""
    if "task" not in request:
        return True
    from warm_commands.warm_containers import early

    return request["task"][0] == sys.executable and early(request["environ"]) == early(os.environ)


def _hold(request: Mapping[str, Any], out: int, err: int, status: int, held: int, more: list[int]) -> None:
    """Fork what is asked for, say its pid, its exit status, and reap it when nobody asks for it any more."""
    if "container" in request:
        from dist_train.jobs.parent_death_signal import end_with_parent

        end_with_parent(os.getppid(), signal.SIGKILL)
    holder = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(status)
        os.close(held)
        _become(request, out, err, more, holder)
    for descriptor in (out, err, *more):
        os.close(descriptor)
    os.write(status, b"%d\n" % pid)
    if "task" in request:
        from warm_commands.agent_fork import kill_with_task

        kill_with_task(pid, held)
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert found is not None
    code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
    with suppress(BrokenPipeError):  # a task that was killed
        os.write(status, b"%d\n" % code)
    os.read(held, 1)
    os.waitpid(pid, 0)
    os._exit(0)


def _become(request: Mapping[str, Any], out: int, err: int, more: list[int], holder: int) -> None:
    from warm_commands.agent_fork import enter_namespaces, limit_as_task, run_agent
    from warm_commands.forked_command import (
        ForkedChild as ForkedChild,  # _ForkedAgents cannot import it later
    )

    from dist_train.agent.warm_parent.process_reset import reset_process

    if "container" in request:
        from warm_commands.agent_fork import run_container

        run_container(request, out, err, more[0], holder)
    if "task" in request:  # what comes before an agent is up waits, as its command line asks for
        signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    os.setsid()
    if "namespaces" in request:
        enter_namespaces(*request["namespaces"])
    reset_process(request["environ"], request["folder"], {1: out, 2: err})
    sys.path.remove(TESTS)
    if "agent" in request:
        run_agent(request["agent"], request["environ"])
    if "task" in request:
        limit_as_task(request)
        if request["task"][1:4] == AGENT:
            run_agent(request["task"], request["environ"])
        raise CommandForked(SCRIPT, *request["task"][1:])
    if request["kind"] == RANK:  # as the agent starts it
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2})
    raise CommandForked(request["kind"], *request["args"])


class _ForkedAgents:
    """The module `subprocess` as launchers.local sees it: agents are forks of this process."""

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def Popen(self, argv: Sequence[str], **options: Any) -> Any:  # noqa: N802 - the name of subprocess
        """Start a process as subprocess.Popen does, an agent by a fork where that makes no difference."""
        from warm_commands.agent_fork import run_agent
        from warm_commands.forked_command import ForkedChild, same_early_variables

        threads = argv[list(argv).index("--threads-per-rank") + 1] if "--threads-per-rank" in argv else ""
        environ = options.get("env") or dict(os.environ)
        if list(argv[1:4]) != AGENT or threads != THREADS or not same_early_variables(environ):
            return subprocess.Popen(argv, **options)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            run_agent(argv, environ, tuple(options.get("pass_fds", ())))
        return ForkedChild(pid)


if __name__ == "__main__":
    sys.path.append(TESTS)
    main(sys.argv[1:])
