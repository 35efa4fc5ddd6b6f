"""Options that hold for single modules of a model: recomputed activations, compiled blocks.

chosen_blocks             which modules: by class, by pattern, or the members of each ModuleList
activation_checkpointing  activations that are computed again in the backward pass, in place of being kept
device_split              which module lies on which device of a process, for `split`
"""
