"""Weights alone: files of other tools opened, converted and written.

model_io            load_model, save_model
import_weights      open weights of any known format
safetensors_file    safetensors files of other tools
torch_file          torch.save files, without pickle
find_state_dict     the state dict inside a larger record
prefixes            names that wrappers prefix
precision           exact widening
convert             import and export of weight files
"""
