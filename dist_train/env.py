"""The environment variables between launcher, agent and worker.

Launchers and the agent build environments here, and ranks read theirs here; no other module names
these variables. Torchrun's variables keep their names, so that any script written for torchrun, and
any tool that reads its variables, works under our agent too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dist_train.errors import ConfigError

# Launcher -> agent.
RUN_ID = "DIST_TRAIN_RUN_ID"
RUN_DIR = "DIST_TRAIN_RUN_DIR"
LAUNCHER = "DIST_TRAIN_LAUNCHER"
NNODES = "DIST_TRAIN_NNODES"
NPROC_PER_NODE = "DIST_TRAIN_NPROC_PER_NODE"
NODE_RANK = "DIST_TRAIN_NODE_RANK"
RDZV = "DIST_TRAIN_RDZV"
INTERFACE = "DIST_TRAIN_INTERFACE"
GRACE_S = "DIST_TRAIN_GRACE_S"
MAX_RESTARTS = "DIST_TRAIN_MAX_RESTARTS"
JOIN_TIMEOUT_S = "DIST_TRAIN_JOIN_TIMEOUT_S"  # how long node 0 waits for the others
JOB = "DIST_TRAIN_JOB"  # names the verdict file: one per start of the job by its launcher
# A secret, where each node has a run directory of its own and checkpoints go to a URL: the agents' key.
RUN_KEY = "DIST_TRAIN_RUN_KEY"
# Kubernetes -> agent: facts about the pod, by the downward API.
POD_UID = "DIST_TRAIN_POD_UID"
POD_NAME = "DIST_TRAIN_POD_NAME"
POD_NODE = "DIST_TRAIN_POD_NODE"
SUBMISSION = "DIST_TRAIN_SUBMISSION"  # uid of the object that was submitted: the same for all its pods
TERMINATION_LOG = "DIST_TRAIN_TERMINATION_LOG"  # for tests; in a pod it is /dev/termination-log
START_METHOD = "DIST_TRAIN_START_METHOD"  # spawn, fork: docs/concepts/attempts.md, "How ranks start"
# Agent -> worker, besides torchrun's own.
ATTEMPT = "DIST_TRAIN_ATTEMPT"
STOP_FILE = "DIST_TRAIN_STOP_FILE"
STEP_SIGNALS = "DIST_TRAIN_STEP_SIGNALS"  # 1: the scheduler signals ranks and their children too
DEVICE = "DIST_TRAIN_DEVICE"
CPUS = "DIST_TRAIN_CPUS"  # the CPUs that the rank binds itself to: 0-3,8
STORE_PREFIX = "DIST_TRAIN_STORE_PREFIX"  # of the keys of dt.init; unknown to others, new for each attempt
INIT_METHOD = "DIST_TRAIN_INIT_METHOD"
PROFILE = "DIST_TRAIN_PROFILE"  # the optimizer steps that this rank profiles: 11:15
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
# Faults that tests and drills inject; see dist_train/resilience/fault_injection.py.
INJECT = "DIST_TRAIN_INJECT"
# Of our own variables those that --env may set.
SET_BY_USERS = (INJECT, START_METHOD)

TORCHRUN_NAMES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
# What a worker must not inherit: these describe the agent's task, not the rank.
DROPPED_FOR_WORKERS = (
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_CPU_BIND",
    "PMI_",
    "PMIX_",
    "OMPI_",
    "PALS_",
)


@dataclass(frozen=True)
class WorkerEnv:
    """What our agent passes to a worker besides torchrun's variables."""

    run_id: str
    run_dir: Path | None
    attempt: int
    node_rank: int
    nnodes: int
    grace_s: float = 30.0
    stop_file: Path | None = None
    device: str = "auto"
    init_method: str = "env://"
    threads_per_rank: int | None = None

    def to_environ(self) -> dict[str, str]:
        """These values as environment variables."""
        out = {
            RUN_ID: self.run_id,
            ATTEMPT: str(self.attempt),
            NODE_RANK: str(self.node_rank),
            NNODES: str(self.nnodes),
            GRACE_S: f"{self.grace_s:g}",
            DEVICE: self.device,
            INIT_METHOD: self.init_method,
        }
        if self.run_dir is not None:
            out[RUN_DIR] = str(self.run_dir)
        if self.stop_file is not None:
            out[STOP_FILE] = str(self.stop_file)
        if self.threads_per_rank is not None:
            out["OMP_NUM_THREADS"] = str(self.threads_per_rank)
        return out

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> WorkerEnv | None:
        """Read them back; None if this process was not started by our agent."""
        env = os.environ if environ is None else environ
        if not env.get(RUN_ID) or ATTEMPT not in env:
            return None
        threads = env.get("OMP_NUM_THREADS", "")
        return cls(
            run_id=env[RUN_ID],
            run_dir=Path(env[RUN_DIR]) if env.get(RUN_DIR) else None,
            attempt=_integer(env, ATTEMPT),
            node_rank=_integer(env, NODE_RANK),
            nnodes=_integer(env, NNODES),
            grace_s=float(env.get(GRACE_S, "30")),
            stop_file=Path(env[STOP_FILE]) if env.get(STOP_FILE) else None,
            device=env.get(DEVICE, "auto"),
            init_method=env.get(INIT_METHOD, "env://"),
            threads_per_rank=int(threads) if threads.isdecimal() else None,
        )


def scrub_for_worker(environ: Mapping[str, str]) -> dict[str, str]:
    """The agent's environment without the variables that give a worker the wrong rank."""
    return {name: value for name, value in environ.items() if not _is_dropped(name)}


def _is_dropped(name: str) -> bool:
    return any(
        name.startswith(pattern)
        if pattern.endswith("_")
        else name == pattern or name.startswith(pattern + "_")
        for pattern in DROPPED_FOR_WORKERS
    )


@dataclass(frozen=True)
class RankInfo:
    """This process's ranks and sizes, and the variables that they were read from.

    `ignored` lists, for `dist-train env --explain`, the variables of other launchers that are set
    but not used, each with the reason.
    """

    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    local_world_size: int
    num_nodes: int
    master_addr: str | None
    master_port: int | None
    source: str
    used: tuple[str, ...] = ()
    ignored: tuple[tuple[str, str], ...] = field(default=())

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> RankInfo:
        """Read the rank facts of torchrun, Slurm, Kubernetes, Open MPI or PMI.

        Torchrun's variables win over Slurm's; Slurm's count only inside a real srun step.
        Raises ConfigError for an incomplete environment, a non-number or a contradiction.
        """
        env = os.environ if environ is None else environ
        info = _detect(env)
        _refuse_contradictions(info, env)
        return info


# From here on Slurm's step ids are not steps of srun (slurm.h: SLURM_BATCH_SCRIPT and others).
_SLURM_SPECIAL_STEPS = 0xFFFFFFF0
_SLURM_STEP_NAMES = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_NUM_TASKS")
_OPENMPI = "OMPI_COMM_WORLD_"


def _detect(env: Mapping[str, str]) -> RankInfo:
    if "RANK" in env or "WORLD_SIZE" in env:
        return _from_torchrun(env)
    if _in_slurm_step(env):
        return _from_slurm(env)
    if f"{_OPENMPI}RANK" in env:
        return _from_mpi(
            env,
            "openmpi",
            f"{_OPENMPI}RANK",
            f"{_OPENMPI}SIZE",
            f"{_OPENMPI}LOCAL_RANK",
            f"{_OPENMPI}LOCAL_SIZE",
        )
    if "PMI_RANK" in env:
        return _from_mpi(env, "pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    return RankInfo(0, 0, 0, 1, 1, 1, None, None, "single", (), tuple(_ignored_slurm(env)))


def _from_torchrun(env: Mapping[str, str]) -> RankInfo:
    rank, world_size = _integer(env, "RANK", "WORLD_SIZE"), _integer(env, "WORLD_SIZE", "RANK")
    by_elastic = "TORCHELASTIC_RUN_ID" in env
    in_pod = "KUBERNETES_SERVICE_HOST" in env
    used = ["RANK", "WORLD_SIZE"]
    if "LOCAL_RANK" in env or not (in_pod or world_size == 1):
        # Without it two ranks of one node would bind the same GPU.
        local_rank = _integer(env, "LOCAL_RANK", "RANK")
        used.append("LOCAL_RANK")
    else:
        local_rank = 0
    local_size = _integer(env, "LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in env else None
    if "GROUP_RANK" in env:
        node_rank = _integer(env, "GROUP_RANK")
        num_nodes = _integer(env, "GROUP_WORLD_SIZE", "GROUP_RANK")
        used += ["GROUP_RANK", "GROUP_WORLD_SIZE"]
    elif local_size:
        node_rank, num_nodes = rank // local_size, -(-world_size // local_size)
    else:
        # A hand-made environment without node variables: rank - local_rank counts the ranks before this node.
        node_rank, num_nodes = (rank, world_size) if in_pod else (0 if rank == local_rank else 1, 1)
        num_nodes = max(num_nodes, node_rank + 1)
    return RankInfo(
        rank=rank,
        local_rank=local_rank,
        node_rank=node_rank,
        world_size=world_size,
        local_world_size=local_size or (1 if in_pod else local_rank + 1),
        num_nodes=num_nodes,
        master_addr=env.get("MASTER_ADDR"),
        master_port=_integer(env, "MASTER_PORT") if "MASTER_PORT" in env else None,
        source="torchrun" if by_elastic else "kubernetes" if in_pod else "manual",
        used=tuple(used),
        ignored=(*_ignored_slurm(env, "torchrun's variables win"), *_ignored_mpi(env)),
    )


def _in_slurm_step(env: Mapping[str, str]) -> bool:
    step = env.get("SLURM_STEP_ID", "")
    return step.isdecimal() and int(step) < _SLURM_SPECIAL_STEPS and "SLURM_PROCID" in env


def _from_slurm(env: Mapping[str, str]) -> RankInfo:
    rank, world_size = _integer(env, "SLURM_PROCID"), _integer(env, "SLURM_STEP_NUM_TASKS", "SLURM_PROCID")
    node_rank = _integer(env, "SLURM_NODEID", "SLURM_PROCID")
    sizes = expand_tasks_per_node(env.get("SLURM_STEP_TASKS_PER_NODE", str(world_size)))
    hosts = expand_hostlist(env.get("SLURM_STEP_NODELIST", "127.0.0.1"))
    port = _integer(env, "MASTER_PORT") if "MASTER_PORT" in env else _slurm_port(env)
    return RankInfo(
        rank=rank,
        local_rank=_integer(env, "SLURM_LOCALID", "SLURM_PROCID"),
        node_rank=node_rank,
        world_size=world_size,
        local_world_size=sizes[node_rank] if node_rank < len(sizes) else 1,
        num_nodes=len(sizes),
        master_addr=env.get("MASTER_ADDR", hosts[0]),
        master_port=port,
        source="slurm",
        used=(*_SLURM_STEP_NAMES, "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST"),
        ignored=tuple(_ignored_mpi(env)),
    )


def _slurm_port(env: Mapping[str, str]) -> int:
    """A port that all tasks of one step compute equally; below 32768, where the ephemeral range starts."""
    job, step = int(env.get("SLURM_JOB_ID", "0") or 0), int(env.get("SLURM_STEP_ID", "0"))
    return 20000 + (job * 7 + step) % 12000


def _from_mpi(
    env: Mapping[str, str],
    source: str,
    rank_name: str,
    size_name: str,
    local_rank_name: str,
    local_size_name: str,
) -> RankInfo:
    rank, world_size = _integer(env, rank_name), _integer(env, size_name, rank_name)
    if local_rank_name not in env and world_size > 1:
        raise ConfigError(
            f"{rank_name}={rank} is set but {local_rank_name} is not",
            cause="without the local rank two ranks of one node would use the same GPU",
            hint=f"export {local_rank_name} (and {local_size_name}), or start by `dist-train launch`",
        )
    local_rank = _integer(env, local_rank_name) if local_rank_name in env else 0
    local_size = _integer(env, local_size_name) if local_size_name in env else world_size
    return RankInfo(
        rank=rank,
        local_rank=local_rank,
        node_rank=rank // local_size,
        world_size=world_size,
        local_world_size=local_size,
        num_nodes=-(-world_size // local_size),
        master_addr=env.get("MASTER_ADDR", "127.0.0.1" if local_size == world_size else None),
        master_port=_integer(env, "MASTER_PORT") if "MASTER_PORT" in env else None,
        source=source,
        used=(rank_name, size_name, local_rank_name, local_size_name),
        ignored=tuple(_ignored_slurm(env, f"{source}'s variables describe the ranks")),
    )


def _ignored_slurm(env: Mapping[str, str], reason: str | None = None) -> list[tuple[str, str]]:
    if "SLURM_JOB_ID" not in env:
        return []
    why = reason or "this process is not inside a step of srun: start it with `srun`, one task per rank"
    return [(name, why) for name in ("SLURM_JOB_ID", *_SLURM_STEP_NAMES) if name in env]


def _ignored_mpi(env: Mapping[str, str]) -> list[tuple[str, str]]:
    names = (f"{_OPENMPI}RANK", f"{_OPENMPI}SIZE", "PMI_RANK", "PMI_SIZE")
    return [(name, "another launcher's variables came first") for name in names if name in env]


def _refuse_contradictions(info: RankInfo, env: Mapping[str, str]) -> None:
    pairs = (
        ("rank", info.rank, "world size", info.world_size),
        ("local rank", info.local_rank, "local world size", info.local_world_size),
        ("node rank", info.node_rank, "number of nodes", info.num_nodes),
        ("local world size", info.local_world_size - 1, "world size", info.world_size),
    )
    for name, value, bound_name, bound in pairs:
        if not 0 <= value < bound:
            given = " ".join(f"{key}={env[key]}" for key in info.used if key in env)
            raise ConfigError(
                f"{name} {value} does not fit {bound_name} {bound}",
                cause=f"{info.source} gave {given}",
                hint="`dist-train env --explain` prints every variable that was seen",
            )


def expand_tasks_per_node(text: str) -> list[int]:
    """Slurm's `2(x3),1` as one number per node: [2, 2, 2, 1]."""
    sizes: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            raise ConfigError(f"SLURM_STEP_TASKS_PER_NODE={text!r} is not of the form 2(x3),1")
        sizes += [int(match[1])] * int(match[2] or 1)
    return sizes


def expand_hostlist(text: str) -> list[str]:
    """Slurm's `gpu[01-03,7],login` as names; the order is Slurm's node order."""
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        match = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
        if match is None:
            hosts.append(part)
            continue
        for item in match[2].split(","):
            low, _, high = item.partition("-")
            for number in range(int(low), int(high or low) + 1):
                hosts += [
                    match[1] + str(number).zfill(len(low)) + rest
                    for rest in expand_hostlist(match[3]) or [""]
                ]
    return hosts


def _integer(env: Mapping[str, str], name: str, beside: str | None = None) -> int:
    value = env.get(name)
    if value is None:
        because = f" but {beside}={env.get(beside)} is" if beside else ""
        raise ConfigError(
            f"{name} is not set{because}",
            cause="the launcher's variables are incomplete",
            hint="`dist-train env --explain` prints every variable that was seen; "
            "`unset` the leftover ones to run as one process",
        )
    try:
        return int(value)
    except ValueError:
        raise ConfigError(
            f"{name}={value!r} is not a whole number",
            cause="the launcher's environment was changed or written by hand",
        ) from None
