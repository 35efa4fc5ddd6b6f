"""What any job is, whatever launches it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from dist_train.profiling.profiled_steps import NONE
from dist_train.rundir.log_text.log_parts import DEFAULT_LIMIT_BYTES

Kind = Literal["config", "script", "module"]


@dataclass(frozen=True)
class Target:
    """What every rank runs: a YAML config by our trainer, a script, or a module.

    `folder` is the config's (or script's) own folder: it goes on sys.path of every rank.
    """

    kind: Kind
    value: str
    args: tuple[str, ...] = ()
    folder: str = ""


@dataclass(frozen=True)
class JobSpec:
    """One job: the same record for every launcher; `plan` is a pure function of it."""

    name: str
    run_id: str
    run_dir: Path
    target: Target
    nodes: int = 1
    procs_per_node: int = 1
    device: Literal["cpu", "cuda"] = "cpu"
    threads_per_rank: int = 1  # 0: as many as a rank has cores; with `bind`, known only on its node
    max_restarts: int = 3
    restart_on: Literal["crash", "any"] = "crash"
    init_method: str = "env://"
    env: tuple[tuple[str, str], ...] = ()
    secrets: tuple[str, ...] = ()  # names only: the values stay in the environment
    time_limit_s: int | None = None
    grace_s: float = 30.0
    show_ranks: str = "0"
    interface: str | None = None
    accept_code_change: bool = False
    local_rank_flag: str = ""  # a script of torch.distributed.launch's time: "--local_rank" or "--local-rank"
    gpus: tuple[str, ...] = ()  # UUIDs, local launcher: shared out evenly to the nodes, see gpus_of
    gpu_vendor: Literal["nvidia", "amd"] = "nvidia"  # whose `gpus` are
    resources: tuple[tuple[str, str], ...] = field(default=())
    log_limit_bytes: int = DEFAULT_LIMIT_BYTES  # of one rank's log, per attempt
    bind: str = "none"  # none, cores, numa, or the CPUs of each local rank: 0-3,8/4-7
    profile: str = NONE  # optimizer steps that torch's profiler records: 11:15
    profile_ranks: str = "0"  # by which ranks: all, or 0,3
    # The resolved config's text, for launchers whose plan carries it; the run directory's config.yaml
    # is its one record, so `to_json` leaves it out.
    config_yaml: str | None = None

    @property
    def world_size(self) -> int:
        """Number of ranks of the whole job."""
        return self.nodes * self.procs_per_node

    def gpus_of(self, node: int) -> tuple[str, ...]:
        """UUIDs of this node's GPUs: rank i of it computes on the i-th; empty where none were named."""
        each = len(self.gpus) // self.nodes
        return self.gpus[node * each : (node + 1) * each]

    def to_json(self) -> dict[str, Any]:
        """As JSON for job.json."""
        record = asdict(self)
        del record["config_yaml"]
        record["run_dir"] = str(self.run_dir)
        return record

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> JobSpec:
        """The inverse of `to_json`."""
        known = {name: record[name] for name in cls.__dataclass_fields__ if name in record}
        target = dict(known.pop("target"))
        target["args"] = tuple(target.get("args", ()))
        known["run_dir"] = Path(known["run_dir"])
        known["gpus"] = tuple(known.get("gpus", ()))
        known["secrets"] = tuple(known.get("secrets", ()))
        for name in ("env", "resources"):
            known[name] = tuple((str(key), str(value)) for key, value in known.get(name, ()))
        return cls(target=Target(**target), **known)


def canonical_json(record: dict[str, Any]) -> bytes:
    """Bytes that are the same for the same record: what `--dry-run` prints and submit writes."""
    return (json.dumps(record, indent=2, sort_keys=True) + "\n").encode()
