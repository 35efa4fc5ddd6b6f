"""Machines without IPv4: network namespaces that the test makes, two agents, a real all-reduce."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest
from conftest import nothing_left
from warm_commands.warm_launch import BackgroundCommand, start_agent

from dist_train import env
from dist_train.rundir import RunDir
from dist_train.rundir.failure import read_failure

pytestmark = pytest.mark.multiprocess

SCRIPT = """
    import os, sys
    import torch, torch.distributed as dist

    dist.init_process_group("gloo", init_method=sys.argv[1], rank=int(os.environ["RANK"]), world_size=2)
    t = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(t)
    assert t.item() == 3.0
    print("sum", t.item(), "at", os.environ["MASTER_ADDR"], flush=True)
    dist.barrier()
    dist.destroy_process_group()
"""
OWN_SCRIPT = """
    import torch
    import dist_train as dt

    run = dt.init()
    assert run.gather(torch.tensor([run.rank])).tolist() == [0, 1]
    print("gathered", flush=True)
"""


@dataclass(frozen=True)
class Machine:
    """Namespaces with their own network, name and /etc/hosts, held open by a process."""

    name: str
    holder: int
    folder: Path

    @property
    def prefix(self) -> list[str]:
        pid = str(self.holder)
        return ["nsenter", "-t", pid, "--net", "--uts", "--mount", f"--wdns={self.folder}", "--"]

    def start_agent(
        self, argv: Sequence[str], environ: Mapping[str, str], out: IO[bytes]
    ) -> BackgroundCommand:
        """Start an agent there; the caller ends it."""
        where = (self.holder, ("net", "uts", "mnt"))
        forked = start_agent(argv, environ, out, self.folder, where)
        if forked is not None:
            return forked
        words = [*self.prefix, *argv]
        return subprocess.Popen(words, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def run(self, *argv: str) -> None:
        subprocess.run([*self.prefix, *argv], check=True, capture_output=True, text=True, timeout=10)


MakeMachine = Callable[[str, str], Machine]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[MakeMachine]:
    """`machine(name, hosts)`: only ::1 on its loopback; skips where namespaces cannot be made."""
    if os.geteuid() or not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        pytest.skip("needs root, ip, unshare and nsenter")
    with ExitStack() as holders:

        def make(name: str, hosts: str) -> Machine:
            file = tmp_path / f"hosts-{name}"
            file.write_text(f"::1 localhost\n{hosts}")
            argv = ["unshare", "--net", "--uts", "--mount", "sleep", "600"]
            holder = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
            holders.callback(holder.wait)
            holders.callback(holder.kill)
            deadline = time.monotonic() + 10
            while os.readlink(f"/proc/{holder.pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt"):
                if holder.poll() is not None or time.monotonic() > deadline:
                    pytest.skip("namespaces cannot be made here")
                time.sleep(0.02)
            made = Machine(name, holder.pid, tmp_path)
            made.run("hostname", name)
            made.run("mount", "--bind", str(file), "/etc/hosts")
            made.run("ip", "link", "set", "lo", "up")
            made.run("ip", "address", "del", "127.0.0.1/8", "dev", "lo")
            return made

        yield make


def script(folder: Path, text: str = SCRIPT) -> Path:
    path = folder / "train.py"
    path.write_text(textwrap.dedent(text))
    return path


def agents(folder: Path, machines: Sequence[Machine], words: Sequence[str], **variables: str) -> RunDir:
    """One agent of one rank on each machine, started by hand; both must end with 0."""
    run = RunDir(folder / "run")
    run.create()
    (run.control / "key").write_bytes(secrets.token_bytes(32))
    run_id = f"six-{secrets.token_hex(4)}"
    environ = {
        **os.environ,
        env.RUN_DIR: str(run.path),
        env.RUN_ID: run_id,
        env.NNODES: str(len(machines)),
        env.NPROC_PER_NODE: "1",
        env.RDZV: f"file://{run.control}/rdzv",
        env.JOIN_TIMEOUT_S: "60",
        **variables,
    }
    argv = [sys.executable, "-P", "-m", "dist_train.agent", "--device", "cpu", *words]
    outputs = [folder / f"said-{node}" for node in range(len(machines))]
    started: list[BackgroundCommand] = []
    try:
        for node, (each, output) in enumerate(zip(machines, outputs, strict=True)):
            with output.open("wb") as out:
                started.append(each.start_agent(argv, {**environ, env.NODE_RANK: str(node)}, out))
        codes = [agent.wait(timeout=120) for agent in started]
    finally:
        for agent in started:
            agent.kill()
    assert codes == [0, 0], ("\n".join(output.read_text() for output in outputs), read_failure(run))
    assert nothing_left(run_id)
    return run


def logs(run: RunDir) -> str:
    return "".join(path.read_text() for path in sorted(run.attempt_logs(0).glob("rank-*")))


def test_two_agents_on_a_machine_that_has_only_its_ipv6_loopback(
    machine: MakeMachine, tmp_path: Path
) -> None:
    six = machine("six", "::1 six\n")
    run = agents(tmp_path, [six, six], ["script", str(script(tmp_path)), "env://"])
    assert logs(run).count("sum 3.0 at ::1") == 2
    assert (run.control / "rdzv").read_text().startswith("six:")


@pytest.mark.proof
def test_a_rendezvous_by_address_in_brackets(machine: MakeMachine, tmp_path: Path) -> None:
    """The endpoint, and the ranks' own tcp:// init method."""
    six = machine("six", "::1 six\n")
    run = agents(
        tmp_path,
        [six, six],
        ["--init-method", "tcp://[::1]:29611", "script", str(script(tmp_path, OWN_SCRIPT))],
        **{env.RDZV: "tcp://[::1]:29610"},
    )
    assert logs(run).count("gathered") == 2


@pytest.mark.proof
def test_launch_on_such_a_machine(machine: MakeMachine, tmp_path: Path) -> None:
    six = machine("six", "::1 six\n")
    argv = ["-P", "-m", "dist_train.cli.main", "launch", "--name", "r", "--device", "cpu", "--nodes", "2"]
    done = subprocess.run(
        [*six.prefix, sys.executable, *argv, str(script(tmp_path)), "env://"],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "sum 3.0 at ::1" in logs(RunDir(tmp_path / "runs" / "r"))


@pytest.fixture
def pair(machine: MakeMachine) -> list[Machine]:
    """Two machines on one cable: fd00:77::1 and fd00:77::2, by name; link-local addresses beside them."""
    hosts = "fd00:77::1 six1\nfd00:77::2 six2\n"
    one, two = machine("six1", hosts), machine("six2", hosts)
    one.run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", str(two.holder))
    for number, each in enumerate((one, two), 1):
        each.run("ip", "address", "add", f"fd00:77::{number}/64", "dev", "eth0", "nodad")
        each.run("ip", "link", "set", "eth0", "up")
    return [one, two]


def test_two_machines_by_name(pair: list[Machine], tmp_path: Path) -> None:
    run = agents(tmp_path, pair, ["script", str(script(tmp_path)), "env://"])
    assert logs(run).count("sum 3.0 at fd00:77::1") == 2


@pytest.mark.proof
@pytest.mark.parametrize("asked", ["eth0", "fd00:77::/64"])
def test_two_machines_by_interface(pair: list[Machine], tmp_path: Path, asked: str) -> None:
    run = agents(tmp_path, pair, ["script", str(script(tmp_path)), "env://"], **{env.INTERFACE: asked})
    assert logs(run).count("sum 3.0 at fd00:77::1") == 2
    assert (run.control / "rdzv").read_text().startswith("[fd00:77::1]:")
