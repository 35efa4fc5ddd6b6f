"""The state of a training: collected from live objects, encoded by name, restored into them.

collect             the state mapping -> its tensors and entries
module_state        modules by the names of the plain module
optimizers          optimizers by parameter name
encoding            plain values as JSON
pending_gradients   refuse a save in the middle of an accumulation
python_types        sets, deques, numpy arrays, … as JSON
data_position       the position in the data
own_copies          tensors that whoever gets them may keep
rng_state           RNG state as tensors
rng_restore         RNG state restored, or derived again
per_rank            PerRank: entries that are each rank's own
per_rank_state      each rank's own state, gathered on rank 0
replicas            replicated state compared over ranks
device_digest       a digest of tensors, computed where they are
part_boxes          the boxes that a rank's part of a tensor is made of
sharded_tensors     tensors that are spread over ranks, as boxes
shard_layout        which rank holds which boxes, and that none is missing
shard_digests       copies of parts compared; whole weights digested one by one
stage_tensors       what the stages of a pipeline hold, known to all ranks
finite_tensors      which weights are not finite
snapshot            one copy in host memory, with its hashes
restore             a loaded checkpoint -> the state mapping
"""
