"""The bytes of a checkpoint: what is written, hashed and checked, on any storage.

layout              names of files, staging areas and leftovers
byte_stream         how the format reads and writes bytes
checkpoint_errors   errors of damaged, unsupported and differing checkpoints
canonical_json      JSON with one form per value
blocks              block hashes
verified_reader     a reader that compares them
file_parts          blocks of a file that are read and hashed in any thread
manifest            manifest.json, version 2
block_hashes        where the block hashes of a file stand
boxes               the parts into which a sharded tensor is cut
tensor_entries      the manifest's entries of tensors
tensor_bytes        tensors as bytes
byte_views          the bytes of many tensors at once
hash_threads        hash in other threads what this one reads or writes
tensor_memory       where the tensors of a file come to lie
large_pages         large pages for large tensors
node_memory         tensors that all ranks of a node map
tensor_file         safetensors files as streams
hashing             weights_hash and state_hash
hashing_v1          those of version 1
"""
