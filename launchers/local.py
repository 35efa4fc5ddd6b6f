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
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from dist_train import env
from dist_train.errors import ExitCode, NotFoundError
from dist_train.jobs import JobHandle, JobSpec, JobState, Launcher, Plan
from dist_train.jobs.agent_command import agent_argv, agent_environ
from dist_train.jobs.gpu_environment import environ_of
from dist_train.jobs.host_port import host_port, listen_at, loopback
from dist_train.jobs.log_files import follow_logs
from dist_train.jobs.orphans import end_processes, wait_for_trackers
from dist_train.jobs.run_state import lease_state
from dist_train.jobs.spec import canonical_json
from dist_train.jobs.terminal_writer import TerminalWriter
from dist_train.prewarm.agent_handle import AgentProcess
from dist_train.prewarm.prewarmed_agent import AgentStart, take_prewarmed
from dist_train.rundir import RunDir
from dist_train.rundir.events import append_event, read_events
from dist_train.rundir.records import read_json, write_bytes_atomic
from launchers._local.early_stop import record_early_stop, still_imports
from launchers._local.last_event import record_last_loss, record_lost_start, restarts
from launchers._local.lost_agents import LostAgents

_POLL_S = 0.05
_SECOND_CTRL_C_GRACE_S = 5.0
_LAST_WORDS_S = 5.0  # for a terminal that takes no output
# Placeholders in the plan for values that exist only at submit.
_PORT, _JOB, _PARENT = "@PORT@", "@JOB@", "@PARENT@"
_PARENT_PID = "--parent-pid"  # the agent's option; the plan has it before the target


class Options(BaseModel):
    """The local launcher has no options of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LocalLauncher(Launcher):
    """The launcher `local`: starts the agents as child processes and supervises them to the end."""

    name = "local"
    Options = Options
    # Common options that this launcher cannot honour, each with the reason.
    refuses: ClassVar[dict[str, str]] = {
        "mem": "nothing limits the memory of processes on this machine",
        "cpus_per_gpu": "nothing limits the cores of processes here; see --bind and threads_per_rank",
        "interface": "the simulated nodes talk over 127.0.0.1",
    }

    def plan(self, spec: JobSpec, options: BaseModel) -> Plan:
        """One command with its environment per simulated node."""
        commands = [
            (
                agent_argv(spec, sys.executable, extra=(_PARENT_PID, _PARENT)),
                agent_environ(spec, "local", node, f"tcp://127.0.0.1:{_PORT}", job=f"local.{_JOB}"),
            )
            for node in range(spec.nodes)
        ]
        for node, (_, environ) in enumerate(commands):
            if mine := spec.gpus_of(node):
                environ.update(environ_of(mine, spec.gpu_vendor))
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
        run.cancel_request.unlink(missing_ok=True)
        handle = JobHandle(f"local:{os.getpid()}")
        append_event(run, "submitted", launcher="local", handle=handle.text, host=socket.gethostname())
        return handle

    def state(self, handle: JobHandle, run_dir: str) -> JobState:
        """The state by the owner's lease, else by the supervisor's pid, else by the run's records."""
        run = RunDir(Path(run_dir))
        state = lease_state(run)
        submitted = list(read_events(run, "submitted"))
        if not submitted or submitted[-1].get("host") != socket.gethostname():
            return state
        if state.phase == "failed" and state.exit_code is None and _supervisor_is_alive(handle):
            return JobState("requeued", "supervisor", f"pid {handle.id} starts all nodes again")
        if state.phase == "pending" and not _supervisor_is_alive(handle):
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
            write_bytes_atomic(run.cancel_request, b"cancel\n")

    def detach(self, handle: JobHandle, run_dir: str) -> JobHandle:
        """Start a supervisor process in the background; its output goes to logs/launcher.log.

        `supervise` keeps that log within the limit of logs.
        """
        run = RunDir(Path(run_dir))
        with (run.logs / "launcher.log").open("ab") as log:
            supervisor = subprocess.Popen(
                [sys.executable, "-P", "-m", "dist_train.cli.main", "supervise", run_dir],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        supervisor.returncode = 0  # it stays: nobody waits for it, and none is to be warned of it
        return JobHandle(f"local:{supervisor.pid}")

    def wait(self, handle: JobHandle, run_dir: str) -> int:
        """Start the agents and supervise them; Ctrl-C saves and stops, a second one kills."""
        run = RunDir(Path(run_dir))
        record = read_json(run.plan / "agents.json")
        if record is None:
            raise NotFoundError(
                f"{run.plan / 'agents.json'} is not there", hint=f"dist-train resume {run_dir}"
            )
        spec = JobSpec.from_json(record["spec"])
        return Supervisor(run, spec, record["nodes"]).run()


class Supervisor:
    """Starts all agents again when one of them is lost, as a scheduler requeues a job."""

    def __init__(self, run: RunDir, spec: JobSpec, commands: Sequence[dict[str, Any]]) -> None:
        self._run = run
        self._spec = spec
        self._commands = commands
        self._agents: list[AgentProcess] = []
        self._writer = TerminalWriter(lambda dropped: None)
        self._interrupts = self._restarts_before = 0
        self._first_start = self._start_number = 0
        self._timed_out = self._terminated = False
        self._deadline = None if spec.time_limit_s is None else time.monotonic() + spec.time_limit_s

    def run(self) -> int:
        """Start the agents until a verdict other than 79; return the job's exit code."""
        previous = (
            signal.signal(signal.SIGINT, self._on_interrupt),
            signal.signal(signal.SIGTERM, self._on_term),
        )
        try:
            self._first_start = self._start_number = len(list(self._run.control.glob("verdict-local.*")))
            while True:
                code = self._run_once(self._start_number)
                if self._interrupts:
                    code = self._code_of_interrupt(code)
                    if code == ExitCode.INTERRUPTED:
                        record_early_stop(self._run, self._verdict_file(self._start_number))
                    return code
                if code != ExitCode.ATTEMPT_LOST:
                    record_last_loss(self._run, code)
                    return code
                self._start_number += 1
                self._note("a node was lost: starting all nodes again")
        finally:
            self._kill_left()
            self._writer.close(_LAST_WORDS_S)
            for number, handler in zip((signal.SIGINT, signal.SIGTERM), previous, strict=True):
                signal.signal(number, handler)

    def _run_once(self, start: int) -> int:
        # Bound before any process starts: the port cannot be taken by another process.
        with listen_at(loopback()) as listener:
            self._restarts_before = restarts(self._run)
            host, port = listener.getsockname()[:2]
            self._agents = []
            starts = [
                self._agent(node, start, host_port(host, port), listener)
                for node in range(len(self._commands))
            ]
            if self._interrupts:
                record_early_stop(self._run, self._verdict_file(start))
                return ExitCode.PREEMPTED
            self._start(starts, listener)
        if self._interrupts or self._terminated:  # it may have come before there was anybody to signal
            self._stop_agents()
        lost_node_file = self._run.lost_node(f"local.{start}")
        lost = LostAgents(self._agents, self._verdict_file(start), lost_node_file, self._note)
        while any(agent.poll() is None for agent in self._agents):
            self._obey_time_limit()
            self._end_rest_after_kill()
            lost.check()
            time.sleep(_POLL_S)
        return self._verdict(start, lost)

    def _code_of_interrupt(self, code: int) -> int:
        """Saved, or stopped at once: 130. Anything else went wrong while it was stopped."""
        saved = code in (ExitCode.PREEMPTED, ExitCode.ATTEMPT_LOST)
        return ExitCode.INTERRUPTED if saved or self._interrupts > 1 else code

    def _agent(self, node: int, start: int, address: str, listener: socket.socket) -> AgentStart:
        command = self._commands[node]
        argv, environ = list(command["argv"]), dict(command["env"])
        # Nowhere else: an argument or a variable of the user's may look like a placeholder.
        if _PARENT_PID in argv:
            argv[argv.index(_PARENT_PID) + 1] = str(os.getpid())
        environ[env.RDZV] = environ[env.RDZV].replace(f"127.0.0.1:{_PORT}", address)
        environ[env.JOB] = environ[env.JOB].replace(_JOB, str(start))
        if node == 0:
            environ[env.RDZV] += f"?fd={listener.fileno()}"
        handed = listener.fileno() if node == 0 else None
        return AgentStart(argv, {**os.environ, **environ}, os.getpid(), handed)

    def _start(self, starts: Sequence[AgentStart], listener: socket.socket) -> None:
        """Start the agents: the process that has begun to import torch becomes them, or each a new one."""
        spec, shared = self._spec, [sys.executable, "-P", "-m", "dist_train.agent"]
        if all(each.argv[:4] == shared for each in starts):
            without = [replace(each, argv=each.argv[4:]) for each in starts]
            taken = take_prewarmed(without, listener.fileno(), spec.threads_per_rank, spec.device)
            if taken is not None:
                self._agents = taken
                return
        for each in starts:
            # One by one in the list: an interrupt signals those that run.
            self._agents.append(
                subprocess.Popen(
                    each.argv,
                    env=each.environ,
                    stdin=subprocess.DEVNULL,
                    pass_fds=() if each.descriptor is None else (each.descriptor,),
                    start_new_session=True,  # Ctrl-C reaches only this process
                )
            )

    def _verdict_file(self, start: int) -> Path:
        return self._run.control / f"verdict-local.{start}"

    def _verdict(self, start: int, lost: LostAgents) -> int:
        codes = [agent.returncode for agent in self._agents]
        # A start whose agents were lost before any of them could record it counts too.
        used_up = start - self._first_start >= self._spec.max_restarts
        try:
            verdict = int(self._verdict_file(start).read_text())
        except (OSError, ValueError):
            pass
        else:
            return lost.exit_code() if verdict == ExitCode.ATTEMPT_LOST and used_up else verdict
        # Agent 0 ended before any verdict: an error at its start. 0 without a verdict is no success.
        if codes[0] is not None and codes[0] > 0 and codes[0] != ExitCode.ATTEMPT_LOST:
            return codes[0]
        write_bytes_atomic(self._verdict_file(start), f"{int(ExitCode.ATTEMPT_LOST)}\n".encode())
        if used_up or restarts(self._run) >= self._spec.max_restarts:
            return lost.exit_code()
        if not self._interrupts:
            record_lost_start(self._run, self._restarts_before)
        return int(ExitCode.ATTEMPT_LOST)

    def _on_interrupt(self, number: int, frame: object) -> None:
        self._interrupts += 1
        if self._interrupts == 1:
            self._run.interrupted(f"local.{self._start_number}").touch()
            self._note("Ctrl-C: saving and stopping; once more kills", before="\n")
            self._stop_agents()
        else:
            self._signal(signal.SIGKILL)

    def _on_term(self, number: int, frame: object) -> None:
        self._terminated = True
        self._signal(signal.SIGTERM)

    def _stop_agents(self) -> None:
        if self._interrupts and self._agents and all(still_imports(agent) for agent in self._agents):
            # They would obey after the import, which may take seconds. There is nothing to save.
            record_early_stop(self._run, self._verdict_file(self._start_number))
            self._signal(signal.SIGKILL)
        else:
            self._signal(signal.SIGTERM)

    def _obey_time_limit(self) -> None:
        if self._deadline is not None and time.monotonic() >= self._deadline and not self._timed_out:
            self._timed_out = True
            self._note("time limit: saving and stopping")
            self._signal(signal.SIGUSR2)

    def _end_rest_after_kill(self) -> None:
        if self._interrupts > 1:
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for agent in self._agents:
            if agent.poll() is None:
                agent.send_signal(number)

    def _note(self, text: str, before: str = "") -> None:
        # A terminal whose reader has stopped must not stop the supervision.
        self._writer.put(sys.stderr, f"{before}[dist-train] {text}\n".encode(errors="replace"), always=True)

    def _kill_left(self) -> None:
        for agent in self._agents:
            if agent.poll() is None:
                agent.kill()
                agent.wait(timeout=_SECOND_CTRL_C_GRACE_S)
        end_processes(self._spec.run_id)
        wait_for_trackers()


def _supervisor_is_alive(handle: JobHandle) -> bool:
    """Whether the handle's process is a dist-train command (pids are reused)."""
    try:
        words = Path(f"/proc/{int(handle.id)}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return False
    return any(word == b"dist_train.cli.main" or word.endswith(b"/dist-train") for word in words)


LAUNCHER = LocalLauncher()
