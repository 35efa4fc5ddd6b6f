"""Leave the process groups without torch's hangs.

process_group_lifetime  keep a group until DDP's reducers on it are freed, which could block all of Python
teardown                destroy the groups, on all ranks together
deadlines               bounds on a rank's start and end
"""
