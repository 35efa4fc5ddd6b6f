"""Cut layers of a model over the ranks of one tensor group, which compute every sample together.

tensor_styles     how one layer is cut, as the plan of a config or a model says
tensor_plan       the layers that a plan names, and how each parameter is cut; refuses a plan that cannot work
parameter_cuts    which rows or columns of a parameter a rank has
tensor_group      exchanges between the ranks of a group, in forward and backward pass
layer_hooks       forward passes that compute with this rank's parts
cut_model         the parts in place of the parameters, as DTensors
group_check       refuse ranks of one group that have unlike samples or random numbers
whole_layers      the results of layers that are cut beside those of whole layers
cut_memory        what a rank holds, from shapes alone
"""
