"""Launches of tests, forked from one process that has imported torch: the imports are most of their time.

warm_launch     launch_cli, as dist_train.testing.launch_cli
forked_command  a forked command, with the interface of subprocess.Popen
command_server  the process that forks them
"""
