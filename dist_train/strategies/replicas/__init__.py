"""Whole copies of a model on all ranks, which exchange their gradients.

exchanged_model   DistributedDataParallel and its options, for `ddp` and `split`
"""
