"""A Slurm cluster of several nodes on this machine: real daemons in a temporary folder.

    with SlurmCluster(ClusterSettings(nodes=2)) as cluster:
        job_id = cluster.sbatch(Path("job.sh"))
        cluster.wait_for(job_id, "COMPLETED")

The nodes are named by loopback addresses, so that their names resolve without /etc/hosts; they share
hostname, ports and files. The nodes of slurm_namespaces.py do not.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from slurm_accounting import start_mariadbd, start_slurmdbd
from slurm_config import (
    CGROUP_CONF,
    ClusterSettings,
    Layout,
    Node,
    gres_conf,
    short_hostname,
    slurm_conf,
)
from slurm_daemons import (
    CLUSTER_MARK,
    NODE_MARK,
    ClusterError,
    PortBlock,
    daemon_environ,
    end_all,
    until,
)

from dist_train.testing.process_tree import descendants, is_alive, pid_is_alive, with_environ

BINARIES = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol", "squeue", "scancel", "sinfo")
_FIELD = re.compile(r"(?:^|\s)([A-Z][\w:/]*)=(.*?)(?=\s[A-Z][\w:/]*=|\s*$)", re.DOTALL)
# Node states that last until an administrator changes them.
_OUT = ("down", "drain", "drng", "fail", "maint", "inval")
Until = str | Sequence[str] | Callable[[dict[str, str]], bool]


class SlurmCluster:
    """munged, slurmctld and one slurmd per node, used as a context manager.

    Attributes:
        folder: all files; removed by `stop`.
        start_s: duration of the start.
    """

    def __init__(self, settings: ClusterSettings | None = None) -> None:
        self.settings = settings or ClusterSettings()
        self.folder = Path(tempfile.gettempdir()).resolve() / f"dist-train-slurm-{secrets.token_hex(4)}"
        self.start_s = 0.0
        self._slurmds: dict[str, psutil.Process] = {}
        self._block: PortBlock | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # Start and stop.

    def start(self) -> None:
        """Start every daemon and wait until all nodes are idle; cleans up when that fails."""
        began = time.monotonic()
        try:
            self.folder.mkdir()
            # munged requires every folder above its socket to be world-accessible.
            self.folder.chmod(0o755)
            self.layout = self._new_layout()
            self._create_network()
            self._write_files()
            self._start_daemons()
        except BaseException as error:
            logs = self.log_tails()
            self.stop()
            if isinstance(error, (ClusterError, OSError, subprocess.SubprocessError)):
                raise ClusterError(f"the Slurm cluster did not start: {error}\n{logs}") from error
            raise
        self.start_s = time.monotonic() - began

    def stop(self) -> None:
        """Cancel the jobs, end every process of the cluster, remove its folder."""
        try:
            if self._slurmds and self.controller_alive():
                self.cancel_all(within_s=10)
        except (ClusterError, subprocess.SubprocessError):
            pass  # remaining processes are killed
        finally:
            end_all(self._processes)
            if self._block is not None:
                self._block.release()
            shutil.rmtree(self.folder, ignore_errors=True)

    def log_tails(self, lines: int = 12) -> str:
        """Last lines of all logs."""
        tails = []
        for path in sorted((self.folder / "log").glob("*")):
            text = path.read_text(encoding="utf-8", errors="replace").splitlines()
            if text:
                tails.append("\n".join([f"--- {path.name}", *text[-lines:]]))
        return "\n".join(tails)

    # Placement of the daemons; a cluster in namespaces overrides these.

    def _new_layout(self) -> Layout:
        count = self.settings.nodes
        self._block = block = PortBlock.reserve(count + 2)
        host = short_hostname()
        controller = Node(host, host, "127.0.0.1", block.first)
        nodes = [Node(f"127.0.0.{11 + i}", host, "127.0.0.1", block.first + 2 + i) for i in range(count)]
        return Layout(self.folder, controller, nodes, dbd_port=block.first + 1)

    def _create_network(self) -> None:
        """Create the network; here none is needed."""

    def _create_node(self, name: str) -> None:
        """Create a node's namespaces again after `kill_node`; here there are none."""

    def _node_prefix(self, name: str) -> Sequence[str]:
        """Command prefix that runs a command on a node."""
        return ()

    @property
    def prefix(self) -> Sequence[str]:
        """Command prefix for clients of the cluster: empty, since it uses the host's network."""
        return ()

    def processes_of(self, name: str) -> list[psutil.Process]:
        """Living processes of a node: slurmd, slurmstepds, tasks and their descendants."""
        marks = {CLUSTER_MARK: str(self.folder), NODE_MARK: name}
        found = with_environ(marks) + with_environ({"SLURMD_NODENAME": name, "SLURM_CONF": self._conf})
        children = [child for process in found for child in descendants(process.pid)]
        return list({process.pid: process for process in [*found, *children]}.values())

    def _processes(self) -> list[psutil.Process]:
        return with_environ({CLUSTER_MARK: str(self.folder)}) + self._processes_of_jobs()

    def _processes_of_jobs(self) -> list[psutil.Process]:
        return with_environ({"SLURM_CONF": self._conf}, having="SLURMD_NODENAME")

    # Daemons.

    def _write_files(self) -> None:
        for name in ("munge", "conf", "state", "run", "log", "dev", *(f"spool/{n}" for n in self.names)):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        key = self.folder / "munge" / "key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        conf = self.folder / "conf"
        (conf / "slurm.conf").write_text(slurm_conf(self.settings, self.layout))
        (conf / "gres.conf").write_text(gres_conf(self._fake_gpus()))
        (conf / "cgroup.conf").write_text(CGROUP_CONF)

    def _fake_gpus(self) -> list[Path]:
        """Create character devices; for regular files Slurm does not set CUDA_VISIBLE_DEVICES."""
        devices = [self.folder / "dev" / f"nvidia{i}" for i in range(self.settings.gpus_per_node)]
        try:
            for device in devices:
                os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        except PermissionError:
            return [Path(f"/dev/tty{i}") for i in range(self.settings.gpus_per_node)]
        return devices

    def _start_daemons(self) -> None:
        munge, log, run = self.folder / "munge", self.folder / "log", self.folder / "run"
        self._daemon(
            "munged",
            "--force",
            f"--key-file={munge}/key",
            f"--socket={munge}/socket",
            f"--seed-file={munge}/seed",
            f"--pid-file={run}/munged.pid",
            f"--log-file={log}/munged.log",
            "--num-threads=4",
        )
        if self.settings.accounting:
            start_mariadbd(self.layout, self._environ_of_daemons())
            start_slurmdbd(self.layout, self._environ_of_daemons())
        self._daemon("slurmctld", "-i")
        for name in self.names:
            self._start_slurmd(name)
        self.wait_idle(within_s=20)

    def _environ_of_daemons(self, name: str = "") -> dict[str, str]:
        return daemon_environ(self.folder, {"SLURM_CONF": self._conf}, name)

    def _daemon(self, *argv: str, node: str = "") -> None:
        """Start a daemon that puts itself into the background."""
        prefix = self._node_prefix(node) if node else self.prefix
        environ = self._environ_of_daemons(node)
        with (self.folder / "log" / f"start-{argv[0]}.txt").open("ab") as out:
            done = subprocess.run(
                [*prefix, *argv], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environ, timeout=30
            )
        if done.returncode:
            raise ClusterError(f"{' '.join(argv)}: exit code {done.returncode}")

    def _start_slurmd(self, name: str) -> None:
        self._daemon("slurmd", "-N", name, node=name)
        until(lambda: self._find_slurmd(name), f"slurmd of {name} runs", 10)

    def _find_slurmd(self, name: str) -> bool:
        marks = {CLUSTER_MARK: str(self.folder), NODE_MARK: name}
        found = [process for process in with_environ(marks) if process.name() == "slurmd"]
        if found:
            self._slurmds[name] = min(found, key=lambda process: process.create_time())
        return bool(found)

    def kill_slurmd(self, name: str) -> None:
        """SIGKILL the daemon alone: its slurmstepds and tasks keep running."""
        end_all(lambda: [p for p in [self._slurmds[name]] if is_alive(p)])

    def kill_node(self, name: str) -> None:
        """SIGKILL every process of a node."""
        end_all(lambda: self.processes_of(name))

    def restart_slurmd(self, name: str) -> None:
        """Start a node's daemon again, after `kill_slurmd` or `kill_node`."""
        self.kill_slurmd(name)
        self._create_node(name)
        self._start_slurmd(name)

    def controller_alive(self) -> bool:
        """Whether slurmctld runs."""
        try:
            return pid_is_alive(int((self.folder / "run" / "slurmctld.pid").read_text()))
        except (OSError, ValueError):
            return False

    def stop_controller(self) -> None:
        """Terminate slurmctld, which saves its state first; clients cannot contact it then."""
        pid = int((self.folder / "run" / "slurmctld.pid").read_text())
        if pid_is_alive(pid):
            psutil.Process(pid).terminate()
        until(lambda: not pid_is_alive(pid), "slurmctld has ended", 20)

    def start_controller(self) -> None:
        """Start slurmctld again and wait until it answers."""
        self._daemon("slurmctld")
        until(lambda: self.run("scontrol", "ping", check=False).returncode == 0, "slurmctld answers", 20)

    # Commands of a user.

    @property
    def names(self) -> list[str]:
        """Names of the nodes."""
        return [node.name for node in self.layout.nodes]

    @property
    def _conf(self) -> str:
        return str(self.folder / "conf" / "slurm.conf")

    @property
    def environ(self) -> dict[str, str]:
        """Environment for clients of this cluster."""
        path = os.environ.get("PATH", os.defpath)
        more = [d for d in ("/usr/bin", "/usr/sbin") if d not in path.split(os.pathsep)]
        return {"SLURM_CONF": self._conf, "PATH": os.pathsep.join([path, *more])}

    def call(
        self, *argv: str, timeout_s: float = 30, check: bool = True, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """As `run`, with output as bytes."""
        environ = {**os.environ, **self.environ, **(env or {})}
        done = subprocess.run(
            [*self.prefix, *argv],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environ,
            timeout=timeout_s,
        )
        if check and done.returncode:
            output = (done.stdout + done.stderr).decode(errors="replace").strip()
            raise ClusterError(f"{' '.join(argv)}: exit code {done.returncode}: {output}")
        return done

    def run(
        self, *argv: str, timeout_s: float = 30, check: bool = True, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a client of this cluster; `env` is added to this process's."""
        done = self.call(*argv, timeout_s=timeout_s, check=check, env=env)
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    def sbatch(self, script: Path, *options: str) -> int:
        """Submit a script; returns the job id."""
        return int(self.run("sbatch", "--parsable", *options, str(script)).stdout.partition(";")[0])

    def job(self, job_id: int) -> dict[str, str]:
        """`scontrol show job` as a dictionary: JobState, Reason, Restarts, ExitCode, NodeList, ..."""
        return fields(self.run("scontrol", "show", "job", "-o", str(job_id)).stdout)

    def wait_for(self, job_id: int, wanted: Until, within_s: float = 30) -> dict[str, str]:
        """Poll until the job is in a state, or one of several, or meets a predicate; returns its record."""
        last: dict[str, str] = {}

        def reached() -> bool:
            last.update(self.job(job_id))
            if callable(wanted):
                return wanted(last)
            return last["JobState"] in ([wanted] if isinstance(wanted, str) else wanted)

        until(reached, f"job {job_id}: {wanted}", within_s, lambda: f"{last}\n{self.log_tails()}")
        return last

    def batch_script(self, job_id: int) -> bytes:
        """The batch script as Slurm has stored it."""
        return self.call("scontrol", "write", "batch_script", str(job_id), "-").stdout

    def cancel_all(self, within_s: float = 30) -> None:
        """Cancel every job, pending or running, and kill its remaining processes."""

        def none_left() -> bool:
            jobs = self.run("squeue", "-h", "-o", "%A").stdout.split()
            if jobs:
                self.run("scancel", "--full", "--signal=KILL", *jobs, check=False)
                self.run("scancel", *jobs, check=False)
            return not jobs

        until(none_left, "all jobs have ended", within_s, self.log_tails, every_s=0.1)
        end_all(self._processes_of_jobs)

    # Nodes.

    def node(self, name: str) -> dict[str, str]:
        """`scontrol show node` as a dictionary: State, Reason, CPUAlloc, ..."""
        return fields(self.run("scontrol", "show", "node", "-o", name).stdout)

    def node_states(self) -> dict[str, str]:
        """sinfo's short states: idle, mix, alloc, drain, down; with `*` for a node that does not respond."""
        lines = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%N %t").stdout.splitlines()
        return dict(line.split(maxsplit=1) for line in lines)

    def wait_node(self, name: str, *states: str, within_s: float = 30) -> str:
        """Poll until the node has one of sinfo's short states."""
        what = f"node {name} is {' or '.join(states)}"
        until(lambda: self.node_states()[name] in states, what, within_s, lambda: str(self.node(name)))
        return self.node_states()[name]

    def wait_idle(self, within_s: float = 30) -> None:
        """Poll until all nodes are idle; does not resume nodes that are out of service."""
        idle = {"idle"}
        until(
            lambda: set(self.node_states().values()) == idle, "all nodes are idle", within_s, self.log_tails
        )

    def set_node(self, name: str, state: str, reason: str = "test") -> None:
        """`scontrol update`: DOWN, DRAIN, RESUME, ..."""
        self.run("scontrol", "update", f"NodeName={name}", f"State={state}", f"Reason={reason}")

    def resume_node(self, name: str) -> None:
        """Resume a node."""
        self.set_node(name, "RESUME")
        self.wait_node(name, "idle", "mix", "alloc")

    def clean(self) -> None:
        """Restore the state after the start: every daemon running, no jobs, all nodes idle."""
        if not self.controller_alive():
            self.start_controller()
        for name in self.names:
            if not is_alive(self._slurmds[name]):
                self.restart_slurmd(name)
        self.cancel_all()
        self._resume_all()

    def _resume_all(self, within_s: float = 30) -> None:
        def idle() -> bool:
            states = self.node_states()
            for name, state in states.items():
                if state.startswith(_OUT):
                    self.run("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)
            return set(states.values()) == {"idle"}

        until(idle, "all nodes are idle", within_s, self.log_tails, every_s=0.1)


def fields(line: str) -> dict[str, str]:
    """Parse scontrol's `Key=value Key=value` of one record."""
    return dict(_FIELD.findall(line.partition("\n")[0]))
