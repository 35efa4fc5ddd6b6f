"""Where parameters and gradients are kept: one module per strategy.

base                 `Strategy`: the protocol of all strategies, and their options
single, ddp, dp      the strategies: one process; DistributedDataParallel; DataParallel in one process
split                layers over several devices of each process, and ddp between processes
fsdp, hsdp           every parameter spread over ranks
fully_sharded        what these have in common: torch's fully_shard, unit by unit
tensor_parallel      layers cut over ranks that compute every sample together
fsdp_tensor_parallel both
tensor_cut           how layers are cut: plans, parts, exchanges, checks
pipeline, stages     the layers cut into stages; what the strategy is made of
rank_zero_weights    rank 0's weights on all ranks, whose models must be alike
torch_data_parallel  DataParallel with parts of chosen size, for `dp`
prepare, unwrap      `dt.prepare` wraps a model by a strategy; `dt.unwrap` returns the user's own module
forward_backward     `dt.forward_backward`: all passes of a step
prepared_models      `dt.no_sync` and `dt.clip_grad_norm_`
strategy_fit         refuse wrong options, or a mesh that the ranks do not fill, without a process group
__main__             `python -m dist_train.strategies`: the same for the command line, which loads no torch
rank_memory          what a rank holds of a model, from shapes alone: `RankMemory`
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
