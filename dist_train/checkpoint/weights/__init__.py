"""Weights alone: files of other tools opened, converted and written.

model_io            load_model, save_model
import_weights      open weights of any known format
safetensors_file    safetensors files of other tools
safetensors_index   several safetensors files with an index
dcp_directory       directories of torch.distributed.checkpoint
dcp_metadata        which file of such a directory holds what
plain_pickle        a pickle as data: nothing in it is run
torch_file          torch.save files, without pickle
file_part           files that others wrote, or parts of them
weight_tensors      weights by name, in memory or read when they are asked for
find_state_dict     the state dict inside a larger record
prefixes            names that wrappers prefix
precision           exact widening
byte_pieces         digest and write weights, one tensor at most in memory
output_file         write one safetensors file
sharded_output      write several with an index
output_formats      what weights are written as
convert             import and export of weight files
"""
