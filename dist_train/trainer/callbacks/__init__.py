"""Callbacks that a config can name: each file is one, found by the registry by its constant CALLBACK.

early_stopping  ends the training when a metric of the evaluation no longer improves
ema             keeps an exponential moving average of the weights, evaluates with it, saves it

Another distribution adds names by the entry-point group `dist_train.callbacks`.
"""
