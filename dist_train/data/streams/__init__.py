"""Read streams: data sets in shards, and iterable data sets without items by index.

sharded_stream     `ShardedStream`: shards read from beginning to end, each sample once, at any world size
shard_readers      readers of lines, JSON lines and Parquet
tar_reader         reader of tar archives whose members are grouped by name
shard_order        the order of an epoch over shards
open_shards        the shards that a process has open
shard_index        count the samples of shards; compare their list over the ranks
iterable_loader    `IterableLoader`: batches of an `IterableDataset`, which every rank reads as a whole
stream_steps       read an iterable data set step by step, in this process or in one worker
torch_stream       the torch DataLoader behind an IterableLoader
stream_agreement   compare the ranks' steps of an iterable data set
"""
