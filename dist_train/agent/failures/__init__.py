"""What a failure is and what follows from it: class, root cause, restart, hint.

classify_failure  class and message of a rank's failure, from exit status, exception and log tail
abort_reason      why C++ or glibc aborted a rank, by a line of its stderr
root_cause        which of several ranks' failures is the root cause
restart_policy    whether to start again: the restart rule over the whole run
error_hints       one line of advice for errors of torch that everybody meets
device_mismatch   which tensor is on the wrong device, from the frames of an exception
"""
