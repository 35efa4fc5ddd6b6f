"""Read an agent's settings: argv for what all nodes share, the environment for what differs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NoReturn

from dist_train import env
from dist_train.agent import timeouts
from dist_train.agent.coordination.endpoint import Endpoint
from dist_train.agent.platform.base_platform import NODE_RANK_VARIABLES
from dist_train.agent.platform.choose_platform import platform_of
from dist_train.agent.settings import Settings
from dist_train.errors import ConfigError, UsageError
from dist_train.profiling.profiled_steps import NONE
from dist_train.rundir import RunDir
from dist_train.rundir.log_text.log_parts import DEFAULT_LIMIT_BYTES


def read_settings(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Settings:
    """Parse both; raises UsageError, or ConfigError with the variable and its value."""
    environ = os.environ if environ is None else environ
    options = _parser().parse_args(argv)
    kind, value, args = _target(options.target)
    launcher = environ.get(env.LAUNCHER, "unknown")
    platform = platform_of(launcher)
    return Settings(
        run=RunDir(Path(_required(environ, env.RUN_DIR))),
        run_id=_required(environ, env.RUN_ID),
        job=platform.job(environ),
        launcher=launcher,
        node=_node_rank(environ),
        nodes=int(_required(environ, env.NNODES)),
        procs=int(_required(environ, env.NPROC_PER_NODE)),
        endpoint=Endpoint.parse(_required(environ, env.RDZV)),
        host=platform.host(environ),
        address=platform.address(environ),
        device=options.device,
        threads_per_rank=options.threads_per_rank,
        init_method=options.init_method,
        max_restarts=int(environ.get(env.MAX_RESTARTS, "3")),
        restart_on=options.restart_on,
        grace_s=float(environ.get(env.GRACE_S, str(timeouts.TERM_TO_KILL_S))),
        join_s=float(environ.get(env.JOIN_TIMEOUT_S, str(timeouts.JOIN_S))),
        show_ranks=options.show_ranks,
        accept_code_change=options.accept_code_change,
        parent_pid=options.parent_pid,
        kind=kind,
        value=value,
        args=args,
        folder=options.folder,
        local_rank_flag=options.local_rank_flag,
        log_limit_bytes=options.log_limit,
        bind=options.bind,
        profile=options.profile,
        profile_ranks=options.profile_ranks,
        instance=platform.instance(environ),
        submission=platform.submission(environ),
        memory_option=platform.memory_option,
        run_key=environ.get(env.RUN_KEY, ""),
    )


class _Parser(argparse.ArgumentParser):
    """Raises our UsageError, so that main reports it as any other error: code 2, which no restart fixes."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(
            f"the agent's arguments are wrong: {message}",
            cause="another dist-train may be installed here, in this image, than where the job was launched",
            hint="install the same one in both",
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
    parser.add_argument("--log-limit", type=int, default=DEFAULT_LIMIT_BYTES, metavar="BYTES")
    parser.add_argument("--bind", default="none")
    parser.add_argument("--profile", default=NONE, metavar="STEPS")
    parser.add_argument("--profile-ranks", default="0", metavar="RANKS")
    parser.add_argument("--parent-pid", type=int, help="end (save and stop) when this parent dies")
    # One positional for all: before a second one, argparse would drop a `--` of the script's own.
    parser.add_argument("target", nargs=argparse.REMAINDER)
    return parser


def _target(words: Sequence[str]) -> tuple[Literal["config", "script", "module"], str, tuple[str, ...]]:
    match words:
        case ["config" | "script" | "module" as kind, value, *args]:
            return kind, value, tuple(args)
        case _:
            raise _Parser().error(f"not a kind, a target and its arguments: {' '.join(words)!r}")


def _required(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name)
    if not value:
        raise ConfigError(
            f"{name} is not set",
            cause="an agent is started by a launcher, which sets it",
            hint="start the job by `dist-train launch`, or see the scripts in slurm/ and k8s/",
        )
    return value


def _node_rank(environ: Mapping[str, str]) -> int:
    name = next((name for name in NODE_RANK_VARIABLES if environ.get(name)), env.NODE_RANK)
    return int(_required(environ, name))
