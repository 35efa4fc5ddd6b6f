"""What an agent is told: argv for what all nodes share, the environment for the rest."""

from __future__ import annotations

import argparse
import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from dist_train import env
from dist_train.agent import address, bounds
from dist_train.agent.address import Address
from dist_train.agent.endpoint import Endpoint
from dist_train.errors import ConfigError, UsageError
from dist_train.rundir import RunDir

_SCHEDULER_NAMES = (
    "SLURM_JOB_ID",
    "SLURM_RESTART_COUNT",
    "SLURM_NODEID",
    "SLURMD_NODENAME",
    "JOB_COMPLETION_INDEX",
    env.POD_NAME,
    env.POD_NODE,
    env.POD_UID,
)
KUBERNETES = "kubernetes"


@dataclass(frozen=True)
class Settings:
    """One agent's view of the job."""

    run: RunDir
    run_id: str
    job: str
    launcher: str
    node: int
    nodes: int
    procs: int
    endpoint: Endpoint
    host: str  # what the cluster calls this node
    address: Address
    device: str
    threads_per_rank: int
    init_method: str
    max_restarts: int
    restart_on: Literal["crash", "any"]
    grace_s: float
    join_s: float
    show_ranks: str
    accept_code_change: bool
    parent_pid: int | None
    kind: Literal["config", "script", "module"]
    value: str
    args: tuple[str, ...]
    folder: str
    local_rank_flag: str = ""  # the option that tells a script of torch.distributed.launch its local rank
    pod: str = ""  # uid; on Kubernetes only
    submission: str = ""  # uid of the submitted object; on Kubernetes only, and not known of every kind

    @property
    def in_pod(self) -> bool:
        """Whether Kubernetes started this agent: nobody has made the run directory for it."""
        return self.launcher == KUBERNETES

    @property
    def world_size(self) -> int:
        """Number of ranks of the whole job."""
        return self.nodes * self.procs

    @property
    def rank_target(self) -> list[str]:
        """What boot.py is told to run."""
        if self.kind == "config":
            return ["module", "dist_train.entrypoint", str(self.run.config), "--folder", self.folder]
        return [self.kind, self.value, *self.args]

    def target_of(self, local_rank: int) -> list[str]:
        """`rank_target` of one rank; its number comes first where the script wants it as an option."""
        if not self.local_rank_flag:
            return self.rank_target
        kind, value, *words = self.rank_target
        return [kind, value, f"{self.local_rank_flag}={local_rank}", *words]


def read(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Settings:
    """Parse both; raises UsageError, or ConfigError with the variable and its value."""
    environ = os.environ if environ is None else environ
    options = _parser().parse_args(argv)
    run_dir = Path(_needed(environ, env.RUN_DIR))
    return Settings(
        run=RunDir(run_dir),
        run_id=_needed(environ, env.RUN_ID),
        job=_job(environ),
        launcher=environ.get(env.LAUNCHER, "unknown"),
        node=_node_rank(environ),
        nodes=int(_needed(environ, env.NNODES)),
        procs=int(_needed(environ, env.NPROC_PER_NODE)),
        endpoint=Endpoint.parse(_needed(environ, env.RDZV)),
        host=_host(environ),
        address=address.choose(environ),
        device=options.device,
        threads_per_rank=options.threads_per_rank,
        init_method=options.init_method,
        max_restarts=int(environ.get(env.MAX_RESTARTS, "3")),
        restart_on=options.restart_on,
        grace_s=float(environ.get(env.GRACE_S, str(bounds.TERM_TO_KILL_S))),
        join_s=float(environ.get(env.JOIN_TIMEOUT_S, str(bounds.JOIN_S))),
        show_ranks=options.show_ranks,
        accept_code_change=options.accept_code_change,
        parent_pid=options.parent_pid,
        kind=options.kind,
        value=options.value,
        args=tuple(options.args),
        folder=options.folder,
        local_rank_flag=options.local_rank_flag,
        pod=_pod(environ),
        submission=environ.get(env.SUBMISSION, "") if environ.get(env.LAUNCHER) == KUBERNETES else "",
    )


class _Parser(argparse.ArgumentParser):
    """Its errors are ours: in a pod they become the termination message, and a code that no restart mends."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(
            f"the agent's words are wrong: {message}",
            cause="another dist-train may be installed here, in this image, than where the job was launched",
            mend="install the same one in both",
        )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m dist_train.agent", allow_abbrev=False)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads-per-rank", type=int, default=1)
    parser.add_argument("--init-method", default="env://")
    parser.add_argument("--restart-on", choices=["crash", "any"], default="crash")
    parser.add_argument("--show-ranks", default="0")
    parser.add_argument("--folder", default=".")
    parser.add_argument("--accept-code-change", action="store_true")
    parser.add_argument("--local-rank-flag", choices=["--local_rank", "--local-rank"], default="")
    parser.add_argument("--parent-pid", type=int, help="end (save and stop) when this parent dies")
    parser.add_argument("kind", choices=["config", "script", "module"])
    parser.add_argument("value")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    return parser


def _needed(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name)
    if not value:
        raise ConfigError(
            f"{name} is not set",
            cause="an agent is started by a launcher, which sets it",
            mend="start the job by `dist-train launch`, or see the scripts in slurm/ and k8s/",
        )
    return value


def _node_rank(environ: Mapping[str, str]) -> int:
    for name in (env.NODE_RANK, "SLURM_NODEID", "JOB_COMPLETION_INDEX"):
        if environ.get(name):
            return int(environ[name])
    return int(_needed(environ, env.NODE_RANK))


def _host(environ: Mapping[str, str]) -> str:
    """On Slurm nodes are known by their NodeName, which need not be the machine's own name."""
    by_slurm = environ.get("SLURMD_NODENAME") if environ.get(env.LAUNCHER) == "slurm" else None
    return by_slurm or socket.gethostname()


def scheduler_facts(environ: Mapping[str, str]) -> dict[str, str]:
    """What the cluster says of this node, for the run's events."""
    return {name: environ[name] for name in _SCHEDULER_NAMES if name in environ}


def _pod(environ: Mapping[str, str]) -> str:
    """Host name and pid are the same in each pod that takes another's place: only its uid tells it."""
    if environ.get(env.LAUNCHER) != KUBERNETES:
        return ""
    return environ.get(env.POD_UID) or uuid.uuid4().hex


def _job(environ: Mapping[str, str]) -> str:
    """Names the verdict file: one per start of the job by its launcher."""
    if "SLURM_JOB_ID" in environ and environ.get(env.LAUNCHER) == "slurm":
        return f"{environ['SLURM_JOB_ID']}.{environ.get('SLURM_RESTART_COUNT', '0')}"
    return environ.get(env.JOB, "job.0")
