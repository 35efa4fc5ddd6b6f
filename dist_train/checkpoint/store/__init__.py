"""Where checkpoints are kept, and the rules of committing, finding and removing them there.

storage             CheckpointStorage: what a place must offer
file                the storage of directories
s3, gs, az          the storages of object stores
object_store/       what they have in common
open_storage        a path or URL -> its storage
checkpoint_names    which checkpoints a storage holds; their manifests
known_records       records of kept checkpoints, parsed once
fence               fence.json: which attempt owns a location
run_identity        whose checkpoints these are: one run's, one live writer's
writer_lock         one live writer per directory
quarantine          moving checkpoints out of use
superseded          what a save after a rollback supersedes
verify              check and list checkpoints, without torch
copy_checkpoint     to another storage, verified
commit              publish a staged checkpoint
reader              read a whole checkpoint
sharded_reader      read parts of sharded tensors, block by block
find_latest         choose the checkpoint to resume from
last_finite         the newest checkpoint whose weights are finite
retention           remove old checkpoints
"""
