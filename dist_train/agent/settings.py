"""The settings of one agent: plain data, read by `command_line`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dist_train.agent.coordination.address import Address
from dist_train.agent.coordination.endpoint import Endpoint
from dist_train.profiling.profiled_steps import NONE
from dist_train.rundir import RunDir
from dist_train.rundir.log_text.log_parts import DEFAULT_LIMIT_BYTES


@dataclass(frozen=True)
class Settings:
    """One agent's view of the job.

    Attributes:
        job: one start of the job by its launcher ("4711.0"); names the verdict file.
        host: what the cluster calls this node.
        local_rank_flag: the option by which a script of torch.distributed.launch expects its local rank.
        instance: unique to this agent, where host name and pid do not tell it from the one that it
            replaces; else empty.
        log_limit_bytes: of one rank's log, per attempt.
        bind: which cores each rank gets, as `launch --bind` has it.
        profile: optimizer steps that are profiled, as `launch --profile` has it; none: no torch.profiler.
        profile_ranks: by which ranks: `all`, or `0,3`.
        rank_cpus: what that came to here: CPUs by local rank (`0-3,8`); empty: ranks are not bound.
        rank_gpus: the one GPU of each rank where some are MIG slices; empty: a rank sees all of the node's.
        cannot_start: why ranks cannot start here as asked; node 0 then ends the run.
        memory_option: the launcher's option for more memory per node; empty where it has none.
        run_key: the secret by which the agents know each other where each node has a run directory of its
            own; empty where they share one, and the key is in it.
        submission: unique id of the submitted object, where the platform knows one; else empty.
    """

    run: RunDir
    run_id: str
    job: str
    launcher: str
    node: int
    nodes: int
    procs: int
    endpoint: Endpoint
    host: str
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
    local_rank_flag: str = ""
    instance: str = ""
    submission: str = ""
    log_limit_bytes: int = DEFAULT_LIMIT_BYTES
    bind: str = "none"
    profile: str = NONE
    profile_ranks: str = "0"
    rank_cpus: tuple[str, ...] = ()
    rank_gpus: tuple[str, ...] = ()
    cannot_start: str = ""
    memory_option: str = ""
    run_key: str = field(default="", repr=False)

    @property
    def world_size(self) -> int:
        """Number of ranks of the whole job."""
        return self.nodes * self.procs

    @property
    def rank_target(self) -> list[str]:
        """The arguments of worker_main: kind, value and the target's own arguments."""
        if self.kind == "config":
            return ["module", "dist_train.entrypoint", str(self.run.config), "--folder", self.folder]
        return [self.kind, self.value, *self.args]

    def target_of(self, local_rank: int) -> list[str]:
        """`rank_target` of one rank, with its local rank as first argument where the script expects it."""
        if not self.local_rank_flag:
            return self.rank_target
        kind, value, *args = self.rank_target
        return [kind, value, f"{self.local_rank_flag}={local_rank}", *args]
