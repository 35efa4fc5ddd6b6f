"""The command and the environment of an agent: the same on every launcher."""

from __future__ import annotations

from collections.abc import Sequence

from dist_train import env
from dist_train.jobs.spec import JobSpec
from dist_train.profiling.profiled_steps import NONE
from dist_train.rundir.log_text.log_parts import DEFAULT_LIMIT_BYTES


def agent_argv(spec: JobSpec, python: str, extra: Sequence[str] = ()) -> list[str]:
    """argv of `dist_train.agent`: what all nodes share. `-P` keeps the working directory off sys.path."""
    target = spec.target
    return [
        python,
        "-P",
        "-m",
        "dist_train.agent",
        "--device",
        spec.device,
        "--threads-per-rank",
        str(spec.threads_per_rank),
        "--init-method",
        spec.init_method,
        "--restart-on",
        spec.restart_on,
        "--show-ranks",
        spec.show_ranks,
        "--folder",
        target.folder or ".",
        *(["--accept-code-change"] if spec.accept_code_change else []),
        *([f"--local-rank-flag={spec.local_rank_flag}"] if spec.local_rank_flag else []),
        *([f"--log-limit={spec.log_limit_bytes}"] if spec.log_limit_bytes != DEFAULT_LIMIT_BYTES else []),
        *([f"--bind={spec.bind}"] if spec.bind != "none" else []),
        *_profile(spec),
        *extra,
        target.kind,
        target.value,
        *target.args,
    ]


def _profile(spec: JobSpec) -> list[str]:
    if spec.profile == NONE:
        return []
    return [f"--profile={spec.profile}", f"--profile-ranks={spec.profile_ranks}"]


def agent_environ(
    spec: JobSpec, launcher: str, node: int | None, rdzv: str, job: str | None = None
) -> dict[str, str]:
    """The launcher's variables of one node, and --env. `node` None: the scheduler sets the node's number."""
    environ = {
        env.RUN_ID: spec.run_id,
        env.RUN_DIR: str(spec.run_dir),
        env.LAUNCHER: launcher,
        env.NNODES: str(spec.nodes),
        env.NPROC_PER_NODE: str(spec.procs_per_node),
        env.RDZV: rdzv,
        env.GRACE_S: f"{spec.grace_s:g}",
        env.MAX_RESTARTS: str(spec.max_restarts),
    }
    if node is not None:
        environ[env.NODE_RANK] = str(node)
    if job is not None:
        environ[env.JOB] = job
    if spec.interface is not None:
        environ[env.INTERFACE] = spec.interface
    return {**environ, **dict(spec.env)}
