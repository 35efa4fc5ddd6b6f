"""This node's ranks: how they start, what they print, how they stop and how their end is seen.

elastic_agent       NodeAgent: torch's LocalElasticAgent with our start, stop and exit barrier
rank                Rank: one rank as a process, its start and its signals
start_method        StartMethod: ranks are forked from the warm parent, or spawned
process_group       a rank's process group at the rank's end
processes           Workers: the ranks of an attempt, watched by pidfd
stacks              Python stacks of ranks, for `dist-train stacks` and before a failed group is killed
worker_environment  the environment of one rank
rank_gpus           the GPUs of each rank: MIG slices, and HIP's variables
cpu_binding         the CPUs of each rank: chosen by the agent
bind_rank           the CPUs of each rank: taken by the rank
worker_main         the first code of every rank: runs the target, records its error
script_pieces       a script in two pieces: its imports, and the rest
step_profiler       `launch --profile` in a rank: counts optimizer steps, writes the trace
signals             SIGTERM in a rank, its forks and what multiprocessing starts for it
rank_output         RankOutput: what is shown of the ranks' output
rank_log            RankLog: the log file of a rank
failure_report      the Failure record of a rank that has ended
graceful_stop       GracefulStop: save and stop within the grace period
interpreter_exit    a rank's way out: what is flushed, kept and marked for its agent
exit_descriptor     a descriptor that becomes readable when a rank ends
exit_watchdog       ExitWatchdog: end ranks that hang on their way out
reaper              reap orphans as process 1 of a container
process_title       what `ps` shows
"""
