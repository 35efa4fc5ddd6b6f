"""What a failure is and what follows from it: class, root cause, restart, hint.

classify_failure  class and message of a rank's failure, from exit status, exception and log tail
root_cause        which of several ranks' failures is the root cause
restart_policy    whether to start again: the restart rule over the whole run
error_hints       one line of advice for errors of torch that everybody meets
device_mismatch   which tensor is on the wrong device, from the frames of an exception
"""
