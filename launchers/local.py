"""This machine: one agent per simulated node, each with torch elastic's engine (torchrun's own)."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from dist_train import env
from dist_train.errors import ExitCode, NotFoundError
from dist_train.jobs import JobHandle, JobSpec, JobState, Plan
from dist_train.jobs.agent_command import agent_argv, agent_environ
from dist_train.jobs.logs import follow_logs
from dist_train.jobs.orphans import end_processes
from dist_train.jobs.owner import lease_state
from dist_train.jobs.spec import canonical_json
from dist_train.rundir import RunDir
from dist_train.rundir.events import append_event, read_events
from dist_train.rundir.records import read_json, write_bytes_atomic

_POLL_S = 0.05
_SECOND_CTRL_C_GRACE_S = 5.0
# Placeholders in the plan for what exists only at submit.
_PORT, _JOB, _PARENT = "@PORT@", "@JOB@", "@PARENT@"


class Options(BaseModel):
    """The local launcher knows nothing that the others do not."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LocalLauncher:
    """Starts the agents as its own children and supervises them to the end."""

    name = "local"
    Options = Options
    # Common options without a meaning here, each with the reason.
    refuses: ClassVar[dict[str, str]] = {
        "mem": "nothing limits the memory of processes on this machine",
        "cpus_per_gpu": "nothing binds processes to cores on this machine; see threads_per_rank",
        "interface": "the simulated nodes talk over 127.0.0.1",
    }

    def plan(self, spec: JobSpec, options: BaseModel) -> Plan:
        """One command with its environment per simulated node."""
        commands = [
            (
                agent_argv(spec, sys.executable, extra=("--parent-pid", _PARENT)),
                agent_environ(spec, "local", node, f"tcp://127.0.0.1:{_PORT}", job=f"local.{_JOB}"),
            )
            for node in range(spec.nodes)
        ]
        for node, (_, environ) in enumerate(commands):
            if mine := spec.gpus_of(node):
                # By UUID: a number would count anew under any other CUDA_VISIBLE_DEVICES or order.
                environ["CUDA_VISIBLE_DEVICES"] = ",".join(mine)
                environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        nodes = [{"argv": argv, "env": environ} for argv, environ in commands]
        record: dict[str, Any] = {"nodes": nodes, "spec": spec.to_json()}
        files = (("agents.json", canonical_json(record)),)
        return Plan(
            self.name, files, f"{spec.nodes} node(s) x {spec.procs_per_node} processes on this machine"
        )

    def submit(self, plan: Plan) -> JobHandle:
        """Write the run key; the agents themselves start in `wait`, whose children they are."""
        import json

        spec = JobSpec.from_json(json.loads(plan.file("agents.json"))["spec"])
        run = RunDir(spec.run_dir)
        key = run.control / "key"
        if not key.exists():
            write_bytes_atomic(key, secrets.token_bytes(32))
        (run.control / "cancel").unlink(missing_ok=True)
        handle = JobHandle(f"local:{os.getpid()}")
        append_event(run, "submitted", launcher="local", handle=handle.text, host=socket.gethostname())
        return handle

    def state(self, handle: JobHandle, run_dir: str) -> JobState:
        """From the lease of the living owner, else the supervisor's pid, else the run's own records."""
        run = RunDir(Path(run_dir))
        state = lease_state(run)
        submitted = list(read_events(run, "submitted"))
        if not submitted or submitted[-1].get("host") != socket.gethostname():
            return state
        if state.phase == "failed" and state.exit_code is None and _supervisor_lives(handle):
            return JobState("requeued", "supervisor", f"pid {handle.id} starts all nodes again")
        if state.phase == "pending" and not _supervisor_lives(handle):
            return JobState(
                "failed", "supervisor", f"its launcher (pid {handle.id}) is gone, no agent had begun"
            )
        return state

    def logs(
        self, handle: JobHandle, run_dir: str, rank: int | None, attempt: int | None, follow: bool
    ) -> Iterator[str]:
        """The run directory's log files."""
        run = RunDir(Path(run_dir))
        return follow_logs(run, rank, attempt, follow, lambda: self.state(handle, run_dir).phase == "running")

    def cancel(self, handle: JobHandle, run_dir: str) -> None:
        """Ask agent 0 to save and stop; it ends with 77."""
        run = RunDir(Path(run_dir))
        if self.state(handle, run_dir).phase in ("pending", "running", "requeued"):
            write_bytes_atomic(run.control / "cancel", b"cancel\n")

    def detach(self, handle: JobHandle, run_dir: str) -> JobHandle:
        """Leave a supervisor behind, whose output goes to logs/launcher.log."""
        run = RunDir(Path(run_dir))
        with (run.logs / "launcher.log").open("ab") as log:
            supervisor = subprocess.Popen(
                [sys.executable, "-P", "-m", "dist_train.cli.main", "supervise", run_dir],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return JobHandle(f"local:{supervisor.pid}")

    def wait(self, handle: JobHandle, run_dir: str) -> int:
        """Start the agents and supervise them; Ctrl-C saves and stops, a second one kills."""
        run = RunDir(Path(run_dir))
        record = read_json(run.plan / "agents.json")
        if record is None:
            raise NotFoundError(
                f"{run.plan / 'agents.json'} is not there", mend=f"dist-train resume {run_dir}"
            )
        spec = JobSpec.from_json(record["spec"])
        return Supervisor(run, spec, record["nodes"]).run()


class Supervisor:
    """Starts all agents again when one of them was lost (as a scheduler would requeue the job)."""

    def __init__(self, run: RunDir, spec: JobSpec, commands: Sequence[dict[str, Any]]) -> None:
        self._run = run
        self._spec = spec
        self._commands = commands
        self._agents: list[subprocess.Popen[bytes]] = []
        self._interrupts = 0
        self._timed_out = False
        self._deadline = None if spec.time_limit_s is None else time.monotonic() + spec.time_limit_s

    def run(self) -> int:
        """Until a verdict that is not 79; returns the job's exit code."""
        previous = (
            signal.signal(signal.SIGINT, self._on_interrupt),
            signal.signal(signal.SIGTERM, self._on_term),
        )
        try:
            gang = len(list(self._run.control.glob("verdict-local.*")))
            while True:
                code = self._run_once(gang)
                if code != ExitCode.ATTEMPT_LOST or self._interrupts:
                    return ExitCode.INTERRUPTED if self._interrupts and code != 0 else code
                gang += 1
                print("[dist-train] a node was lost: starting all nodes again", file=sys.stderr)
        finally:
            self._kill_left()
            for number, handler in zip((signal.SIGINT, signal.SIGTERM), previous, strict=True):
                signal.signal(number, handler)

    def _run_once(self, gang: int) -> int:
        # Bound before anything starts: the port is ours from birth, and a taken one cannot happen.
        with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
            port = str(listener.getsockname()[1])
            self._agents = []
            for node in range(len(self._commands)):
                self._agents.append(self._start(node, gang, port, listener))
        while any(agent.poll() is None for agent in self._agents):
            self._obey_time_limit()
            self._end_rest_after_kill()
            time.sleep(_POLL_S)
        return self._verdict(gang)

    def _start(self, node: int, gang: int, port: str, listener: socket.socket) -> subprocess.Popen[bytes]:
        command = self._commands[node]
        filled = {_PORT: port, _JOB: str(gang), _PARENT: str(os.getpid())}
        argv = [filled.get(word, word) for word in command["argv"]]
        environ = {name: _fill(value, filled) for name, value in command["env"].items()}
        handed: tuple[int, ...] = ()
        if node == 0:
            environ[env.RDZV] += f"?fd={listener.fileno()}"
            handed = (listener.fileno(),)
        return subprocess.Popen(
            argv,
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            pass_fds=handed,
            start_new_session=True,  # Ctrl-C reaches only this process
        )

    def _verdict(self, gang: int) -> int:
        codes = [agent.returncode for agent in self._agents]
        try:
            return int((self._run.control / f"verdict-local.{gang}").read_text())
        except (OSError, ValueError):
            pass
        if codes[0] is not None and codes[0] >= 0 and codes[0] != ExitCode.ATTEMPT_LOST:
            return codes[0]  # agent 0 ended by itself before any verdict: found wrong at its start
        write_bytes_atomic(
            self._run.control / f"verdict-local.{gang}", f"{int(ExitCode.ATTEMPT_LOST)}\n".encode()
        )
        if self._restarts() >= self._spec.max_restarts:
            return 128 - codes[0] if codes[0] is not None and codes[0] < 0 else int(ExitCode.UNAVAILABLE)
        return int(ExitCode.ATTEMPT_LOST)

    def _restarts(self) -> int:
        count = 0
        for event in read_events(self._run):
            count = 0 if event["kind"] == "submitted" else count + (event["kind"] == "restarted")
        return count

    def _on_interrupt(self, number: int, frame: object) -> None:
        self._interrupts += 1
        if self._interrupts == 1:
            print("\n[dist-train] Ctrl-C: saving and stopping; once more kills", file=sys.stderr)
            self._signal(signal.SIGTERM)
        else:
            self._signal(signal.SIGKILL)

    def _on_term(self, number: int, frame: object) -> None:
        self._signal(signal.SIGTERM)

    def _obey_time_limit(self) -> None:
        if self._deadline is not None and time.monotonic() >= self._deadline and not self._timed_out:
            self._timed_out = True
            print("[dist-train] time limit: saving and stopping", file=sys.stderr)
            self._signal(signal.SIGUSR2)

    def _end_rest_after_kill(self) -> None:
        if self._interrupts > 1:
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for agent in self._agents:
            if agent.poll() is None:
                agent.send_signal(number)

    def _kill_left(self) -> None:
        for agent in self._agents:
            if agent.poll() is None:
                agent.kill()
                agent.wait(timeout=_SECOND_CTRL_C_GRACE_S)
        end_processes(self._spec.run_id)


def _supervisor_lives(handle: JobHandle) -> bool:
    """Whether the handle's process is still a command of ours (pids are reused)."""
    try:
        words = Path(f"/proc/{int(handle.id)}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return False
    return any(word == b"dist_train.cli.main" or word.endswith(b"/dist-train") for word in words)


def _fill(text: str, filled: dict[str, str]) -> str:
    for placeholder, value in filled.items():
        text = text.replace(placeholder, value)
    return text


LAUNCHER = LocalLauncher()
