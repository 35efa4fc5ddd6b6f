"""One module per verb: `dist-train VERB` is COMMAND of `VERB.py`.

Beside them: checkpoint_convert, with the sub-verbs `checkpoint import` and `export`, which convert weights
(`checkpoint.py` has those that read checkpoints).
"""
