"""`launch` and `logs`: log lines and state changes until the job ends.

log_tails     several logs followed at once, in one queue
job_follower  `launch`: node 0's log on stdout, state changes on stderr, the end
follow_output  stdout and stderr of a follower, which waits for no reader
printed_states  which of the state changes are printed, and how often
tail_logs     `logs`: the pods of one node or of all, read once or followed
"""
