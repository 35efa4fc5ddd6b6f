"""Training in fp16: small gradients are scaled up in the backward pass, and overflows leave a step out.

loss_scaler    `LossScaler`: the scale, decided by all ranks together, for own loops too
scaled_update  the update of a trainer's step under it
"""
