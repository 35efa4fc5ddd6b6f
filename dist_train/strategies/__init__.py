"""Where parameters and gradients are kept: one module per strategy.

base                 `Strategy`: the protocol of all strategies, and their options
single, ddp, dp      the strategies: one process; DistributedDataParallel; DataParallel in one process
split                layers over several devices of each process, and ddp between processes
fsdp, hsdp           and those that spread every parameter over ranks
parameter_sharding   what these have in common: torch's fully_shard, unit by unit
sharding_units       which modules are units
rank_zero_weights    rank 0's weights on all ranks, whose models must be alike
torch_data_parallel  DataParallel with parts of chosen size, for `dp`
prepare, unwrap      `dt.prepare` wraps a model by a strategy; `dt.unwrap` returns the user's own module
prepared_models      `dt.no_sync` and `dt.clip_grad_norm_`
strategy_fit         refuse wrong options, or a mesh that the ranks do not fill, without a process group
__main__             `python -m dist_train.strategies`: the same for the command line, which loads no torch
rank_memory          what a rank holds of a model, from shapes alone: `RankMemory`
sharded_memory       the same where fully_shard spreads it, by torch's chunks
split_model          refuse a model that is spread over several devices
lazy_parameters      refuse a model whose lazy layers have no shape yet
warmup               one discarded step, so that a restarted run has DDP's buckets in the same layout
blocks               options for single modules: recomputed activations, compiled blocks, their devices
replicas             what ddp and split have in common
discarded_step       what that step must leave as it was: attributes of modules, hooks of gradients
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_train.lazy_exports import lazy_exports

_PUBLIC = {
    "Strategy": "dist_train.strategies.base",
    "prepare": "dist_train.strategies.prepare",
    "unwrap": "dist_train.strategies.unwrap",
    "warm_up": "dist_train.strategies.warmup",
}

if TYPE_CHECKING:
    from dist_train.strategies.base import Strategy as Strategy
    from dist_train.strategies.warmup import warm_up as warm_up

# `prepare` and `unwrap` are also names of modules here; the functions are dt.prepare and dt.unwrap.
__all__ = ["Strategy", "warm_up"]

__getattr__, __dir__ = lazy_exports(__name__, _PUBLIC)
