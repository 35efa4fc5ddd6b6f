"""Weight what each rank adds to the gradients, so that they are those of the mean over the whole step.

batch_weight          a rank's fraction of the optimizer step
kept_batches          whether a program keeps batches beyond their loop
read_ahead            whether a loop reads batches ahead of the one that it trains on
gradients             weight what prepared modules add to their gradients; `Run.backward`
gradient_hooks        the hooks and units of one module
exchange_check        whether a step's gradients were exchanged
exchange_time         how long a backward pass waits for the other ranks' gradients
units, unit_call      the arguments of `Run.backward`; how one call of it scales gradients
optimizer_steps       which gradients a step has applied
"""
