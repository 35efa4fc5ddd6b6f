"""How much memory a config's training takes on each rank, before anything is started.

shape_model        the model without values
optimizer_memory   the optimizer's state, by a step without values
sample_batch       a micro-batch of the config's own data
activation_memory  what forward and backward pass keep, by running them without values
live_storage       bytes of tensors at each moment of a computation
measured_parts     these of one config, each measured once
rank_total         the sum for one rank, and its peak
candidate_sizes    strategies, meshes and numbers of ranks to compare
job_estimate       all of it for one config, as a record
model_check        does the config's model fit its strategy?
optimizer_check    can its optimizer step what the strategy gives it?
child_answer       how both processes that the command line asks answer
__main__           `python -m dist_train.estimate`
"""
