"""What every adapter must keep: one function per kind, called with the adapter itself.

They raise AssertionError with the rule that is broken. `dist_train.testing` exports them.
"""
