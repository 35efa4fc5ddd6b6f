"""The environment of one rank: torchrun's variables, ours, GPUs and secrets."""

from __future__ import annotations

import json
from collections.abc import Mapping

from dist_train import env
from dist_train.agent.settings import Settings
from dist_train.agent.workers.rank_gpus import gpu_environ
from dist_train.errors import ConfigError
from dist_train.jobs.torch_build import hip_version
from dist_train.profiling.profiled_steps import NONE, is_profiled
from dist_train.rundir import RunDir

# Set for torch's agent in this process; a torchrun that a script starts would assign its ranks by it, too.
WORKER_IDENTICAL = "TORCH_ELASTIC_WORKER_IDENTICAL"


def worker_environment(
    settings: Settings,
    environ: Mapping[str, str],
    attempt: int,
    rank: int,
    local_rank: int,
    master_addr: str,
    master_port: int,
) -> dict[str, str]:
    """Build a rank's environment from the agent's own; raises ConfigError for unreadable secrets."""
    built = env.scrub_for_worker(environ)
    built.pop(WORKER_IDENTICAL, None)
    # The agent's own may be those of a rank in which this job was launched.
    built.pop(env.CPUS, None)
    if settings.rank_cpus:
        built[env.CPUS] = settings.rank_cpus[local_rank]
    built.pop(env.PROFILE, None)
    if settings.profile != NONE and is_profiled(settings.profile_ranks, rank):
        built[env.PROFILE] = settings.profile
        # A variable of the profiler's library, which else says on stderr that it begins and ends.
        built.setdefault("KINETO_LOG_LEVEL", "6")
    built.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if settings.address.interface is not None:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            built.setdefault(name, settings.address.interface)
    rocm = settings.device == "cuda" and hip_version() is not None
    built |= gpu_environ(built, settings.device, local_rank, settings.rank_gpus, rocm)
    built |= _read_secrets(settings.run)
    built |= env.WorkerEnv(
        run_id=settings.run_id,
        run_dir=settings.run.path,
        attempt=attempt,
        node_rank=settings.node,
        nnodes=settings.nodes,
        grace_s=settings.grace_s,
        device=settings.device,
        init_method=settings.init_method,
        threads_per_rank=settings.threads_per_rank,
    ).to_environ()
    return built | _torchrun_variables(settings, attempt, rank, local_rank, master_addr, master_port)


def _torchrun_variables(
    settings: Settings, attempt: int, rank: int, local_rank: int, master_addr: str, master_port: int
) -> dict[str, str]:
    variables = {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": settings.world_size,
        "LOCAL_WORLD_SIZE": settings.procs,
        "GROUP_RANK": settings.node,
        "GROUP_WORLD_SIZE": settings.nodes,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": settings.world_size,
        "ROLE_NAME": "default",
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": master_port,
        "TORCHELASTIC_RUN_ID": settings.run_id,
        # torch counts restarts per agent; the attempt is the same on all nodes.
        "TORCHELASTIC_RESTART_COUNT": attempt,
        "TORCHELASTIC_MAX_RESTARTS": settings.max_restarts,
        "TORCHELASTIC_USE_AGENT_STORE": settings.init_method == "env://",
    }
    return {name: str(value) for name, value in variables.items()}


def _read_secrets(run: RunDir) -> dict[str, str]:
    """Read the values of --secret from a 0600 file, where nodes do not inherit them from the launcher."""
    try:
        record = json.loads(run.secrets.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{run.secrets} cannot be read: {error}", hint=f"dist-train resume {run.path} writes it again"
        ) from None
    return {str(name): str(value) for name, value in record.items()}
