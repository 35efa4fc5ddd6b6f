"""Read samples: an exact resumable loader, a drop-in DistributedSampler, a permutation without a table.

loader                `dt.loader`: the loader that fits the data and the use
training_loader       what every loader that trains is: a position, plain batches, micro-batches
exact_loader          `ExactLoader`: every sample once per epoch at any world size
evaluation_loader     `EvaluationLoader`: every sample once over all ranks, without a position
streams               shards that are read from beginning to end, and iterable data sets
current_run           the run a loader belongs to; refuse one in a rank that has not joined its job
epoch_order           the order of each epoch: a permutation, or what a sampler gives
sampler_protocol      draw one epoch of a sampler, everything random in it keyed by (seed, epoch)
batch_partition       each rank's micro-batches of every optimizer step
sampled_batches       the same where a batch sampler made the steps
reading               read, collate and prefetch the samples of a batch; loader workers
permutation           the order of an epoch: random access in O(1) memory
random_keys           derive 64-bit keys by splitmix64
sampler               `DistributedSampler` with torch's arguments
data_agreement        compare the data and the position of all ranks at the start of an iteration
sample_summary        what ranks compare of a few samples
paired_loaders        refuse two shuffled loaders that are read side by side in one order
gradients_disabled    warn where a training loader is used to evaluate
left_early            warn where a loop is left with a batch that was not trained on
dataset_fingerprint   refuse to resume a position in another data set
validation            check a loader's arguments
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_train.lazy_exports import lazy_exports

# Public name -> the module that defines it.
_PUBLIC = {
    "DistributedSampler": "dist_train.data.sampler",
    "EvaluationLoader": "dist_train.data.evaluation_loader",
    "ExactLoader": "dist_train.data.exact_loader",
    "IterableLoader": "dist_train.data.streams.iterable_loader",
    "JsonLinesReader": "dist_train.data.streams.shard_readers",
    "LineReader": "dist_train.data.streams.shard_readers",
    "MicroBatch": "dist_train.data.batch_partition",
    "PERMUTATION_VERSION": "dist_train.data.permutation",
    "ParquetReader": "dist_train.data.streams.shard_readers",
    "Permutation": "dist_train.data.permutation",
    "ShardedStream": "dist_train.data.streams.sharded_stream",
    "TarReader": "dist_train.data.streams.tar_reader",
}

if TYPE_CHECKING:
    from dist_train.data.batch_partition import MicroBatch as MicroBatch
    from dist_train.data.evaluation_loader import EvaluationLoader as EvaluationLoader
    from dist_train.data.exact_loader import ExactLoader as ExactLoader
    from dist_train.data.permutation import PERMUTATION_VERSION as PERMUTATION_VERSION
    from dist_train.data.permutation import Permutation as Permutation
    from dist_train.data.sampler import DistributedSampler as DistributedSampler
    from dist_train.data.streams.iterable_loader import IterableLoader as IterableLoader
    from dist_train.data.streams.shard_readers import JsonLinesReader as JsonLinesReader
    from dist_train.data.streams.shard_readers import LineReader as LineReader
    from dist_train.data.streams.shard_readers import ParquetReader as ParquetReader
    from dist_train.data.streams.sharded_stream import ShardedStream as ShardedStream
    from dist_train.data.streams.tar_reader import TarReader as TarReader

__all__ = [
    "PERMUTATION_VERSION",
    "DistributedSampler",
    "EvaluationLoader",
    "ExactLoader",
    "IterableLoader",
    "JsonLinesReader",
    "LineReader",
    "MicroBatch",
    "ParquetReader",
    "Permutation",
    "ShardedStream",
    "TarReader",
]

__getattr__, __dir__ = lazy_exports(__name__, _PUBLIC)
