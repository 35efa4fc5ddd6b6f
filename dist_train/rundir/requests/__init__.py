"""What commands ask a running job's agents for, by files in control/ of its run directory.

stacks_request  `dist-train stacks` asks by a file, and each node's agent answers by one
stacks_command  the same as a process, for a machine that sees the run directory where the user's does not
"""
