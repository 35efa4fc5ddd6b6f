"""Commands that are forked from a command server, with the interface of subprocess.Popen that tests need."""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from warm_commands.command_server import COMMAND, MESSAGE, MODULE, RANK, READY, SCRIPT, THREADS

from dist_train.prewarm.early_variables import early_variables

_THREADS_VARIABLE = "OMP_NUM_THREADS"
_OF_ONE_TEST = ("LEAK_CHECK_TEST", "PYTEST_CURRENT_TEST", "OMP_NUM_THREADS")
_ANSWER_S = 60.0  # the server imports torch first


def same_early_variables(environ: Mapping[str, str], ours: Mapping[str, str] | None = None) -> bool:
    """Whether a fork of this process may have this environment."""
    mine, theirs = early_variables(os.environ if ours is None else ours), early_variables(environ)
    return {**mine, _THREADS_VARIABLE: THREADS} == {_THREADS_VARIABLE: THREADS, **theirs}


class ForkedChild:
    """A forked child of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code if it has ended."""
        if self.returncode is None:
            with suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        """Signal it if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class ForkedCommand:
    """A command of the server; a child of another process, which holds its status."""

    def __init__(self, status: int, held: int) -> None:
        self._status: IO[bytes] = os.fdopen(status, "rb", buffering=0)
        self._held = held
        self.returncode: int | None = None
        if not select.select([self._status], [], [], _ANSWER_S)[0]:
            raise TimeoutError("the command server does not answer")
        line = self._status.readline()
        if not line:
            raise ConnectionError("the command server has ended")
        self.pid = int(line)

    def poll(self) -> int | None:
        """Return the exit code if it has ended."""
        return self._read(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises TimeoutExpired."""
        code = self._read(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("dist-train", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Signal it if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL if it runs."""
        self.send_signal(signal.SIGKILL)

    def _read(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout_s)[0]:
            self.returncode = int(self._status.readline() or b"-9")
            self._status.close()
            os.close(self._held)
        return self.returncode


def _server_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment with room for more: forks show theirs in the memory of the server's."""
    own = {name: value for name, value in environ.items() if name not in _OF_ONE_TEST}
    return {**own, "DIST_TRAIN_TESTING_ROOM": "x" * 8192}


class CommandServer:
    """The client of a server process, which all pytest workers of a session share.

    Args:
        environ: the server's environment, and so the early variables of its forks.
        modules: what it imports.

    Attributes:
        address: its name among Linux's abstract sockets.
    """

    def __init__(self, environ: Mapping[str, str], modules: Sequence[str]) -> None:
        address = _address(environ, modules)
        self.address = address.removeprefix("\0")
        self._connection = _connect(address, environ, modules)

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        try:
            return self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except ConnectionError:
            return False

    def command(
        self, args: Sequence[str], folder: str, environ: Mapping[str, str], out: int, err: int
    ) -> ForkedCommand:
        """Run `dist-train ARGS`, with these descriptors as its output."""
        return self._start(COMMAND, args, folder, environ, out, err)

    def start_script(
        self, args: Sequence[str], folder: str, environ: Mapping[str, str], out: int, err: int
    ) -> ForkedCommand:
        """Run `python ARGS`, where the first one is a script; likewise."""
        return self._start(SCRIPT, args, folder, environ, out, err)

    def start_module(
        self, args: Sequence[str], folder: str, environ: Mapping[str, str], out: int, err: int
    ) -> ForkedCommand:
        """Run `python -P -m ARGS`; likewise."""
        return self._start(MODULE, args, folder, environ, out, err)

    def start_rank(
        self, args: Sequence[str], folder: str, environ: Mapping[str, str], out: int, err: int
    ) -> ForkedCommand:
        """Run a script as an agent's rank on its own, by the module that every rank begins with; likewise."""
        return self._start(RANK, args, folder, environ, out, err)

    def _start(
        self, kind: str, args: Sequence[str], folder: str, environ: Mapping[str, str], out: int, err: int
    ) -> ForkedCommand:
        request = {"kind": kind, "args": list(args), "environ": dict(environ), "folder": folder}
        return self.fork(request, out, err)

    def fork(self, request: Mapping[str, Any], out: int, err: int, *more: int) -> ForkedCommand:
        """Fork what is asked for: see command_server."""
        body = os.memfd_create("command", os.MFD_CLOEXEC)
        status_read, status_write = os.pipe()
        held_read, held_write = os.pipe()
        with open(body, "wb", closefd=False) as file:
            file.write(json.dumps(request).encode())
        socket.send_fds(self._connection, [MESSAGE], [body, out, err, status_write, held_read, *more])
        for descriptor in (body, status_write, held_read):
            os.close(descriptor)
        return ForkedCommand(status_read, held_write)

    def close(self) -> None:
        """Leave the server, which ends with its last client; commands that run go on."""
        self._connection.close()


def _address(environ: Mapping[str, str], modules: Sequence[str]) -> str:
    """A name among Linux's abstract sockets: one for each session of pytest and what its forks inherit."""
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    early = sorted(early_variables(environ).items())
    inherited = hashlib.sha256(repr((sys.executable, early, list(modules))).encode()).hexdigest()
    return f"\0dist-train-test-commands-{session}-{inherited[:16]}"


def _connect(address: str, environ: Mapping[str, str], modules: Sequence[str]) -> socket.socket:
    """Connect to the server with this address, which is started where there is none."""
    deadline = time.monotonic() + _ANSWER_S
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(address)
            connection.settimeout(_ANSWER_S)
            if connection.recv(len(READY)) == READY:
                connection.settimeout(None)
                return connection
        except ConnectionRefusedError:
            _start_server(address, environ, modules)
        except (ConnectionError, TimeoutError):
            pass  # it ended as its last client left, or imports for very long
        connection.close()
        if time.monotonic() > deadline:
            raise TimeoutError("the command server does not answer")


def _start_server(address: str, environ: Mapping[str, str], modules: Sequence[str]) -> None:
    """Start it as a child of process 1, with a listener that clients can connect to at once."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            listener.bind(address)
        except OSError:
            return  # another worker starts it
        listener.listen(64)
        program = str(Path(__file__).with_name("command_server.py"))
        subprocess.run(
            [sys.executable, "-P", program, str(listener.fileno()), *modules],
            pass_fds=(listener.fileno(),),
            env=_server_environ(environ),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            check=True,
        )


# What `launch` and its agents and ranks import, the last ones where they are used.
RANKS = (
    "torch._dynamo",
    "launchers.local",
    "dist_train.agent.main",
    "dist_train.resilience.session",
    "dist_train.trainer.run_training",
    "dist_train.agent.coordination.rendezvous",
    "dist_train.agent.workers.elastic_agent",
    "dist_train.agent.workers.worker_main",
    "dist_train.cli.launch.submit_job",
    "dist_train.cli.live.follow_job",
    "dist_train.cli.verbs.launch",
    "dist_train.cli.verbs.resume",
    "launchers._kubernetes.kubernetes_option_rows",
    "launchers._local.local_option_rows",
    "launchers._slurm.slurm_option_rows",
    "encodings.idna",
    "tabulate",
)
_servers: dict[tuple[str, ...], CommandServer] = {}


def command_server(modules: tuple[str, ...] = RANKS) -> CommandServer:
    """Return the server with these modules; the first call of a session starts it."""
    found = _servers.get(modules)
    if found is None or not found.is_alive:
        found = _servers[modules] = CommandServer(os.environ, modules)
    return found
