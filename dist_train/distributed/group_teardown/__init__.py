"""Leave the process groups without torch's hangs.

process_group_lifetime  keep a group until DDP's reducers on it are freed, which could block all of Python
teardown                destroy the groups, on all ranks together
living_objects          every living object of a class, such as DDP's
deadlines               bounds on a rank's start and end
"""
