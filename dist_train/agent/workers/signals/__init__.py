"""Signals in a rank: a stop reaches the script once, a scheduler's signal ends none of its processes.

rank_signals        SIGTERM in a rank, and its forks
child_signals       SIGTERM in what multiprocessing starts for a rank
spawned_process     the first code of a process that multiprocessing spawns for a rank
dropped_interrupts  a stop that Python drops in a finalizer is raised again
"""
