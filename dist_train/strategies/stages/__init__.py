"""What the strategy `pipeline` is made of: a model cut into stages, each on ranks of its own.

model_layers      the layers of a model, in the order in which they are called
stage_cut         which layers make a stage
stage_mesh        which ranks hold which stage, and the groups that they talk in
held_tensors      keep a stage's own tensors; those of other stages go to the device meta
activations       send a stage's output to the next one, of any shape
action_order      forward and backward passes of a step in their order: GPipe and 1F1B
stage_random      random numbers: of tasks alike on all stages, of layers not; the same after a restart
stage_passes      what a rank does when its model is called: receive, run its layers, send
pipeline_module   the user's module, whose call runs one stage
pipeline_step     all micro-batches of an optimizer step
stage_gradients   gradients of tied weights and of copies of a stage; the norm over all stages
sharded_stage     spread a stage's parameters over ranks
stage_memory      what each stage holds, from shapes alone
"""
