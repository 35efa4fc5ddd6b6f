"""Agent 0's records in the run directory, of which it is the only writer.

lease          one owner per run; a later start of the same job may take it over
recorder       RunRecorder: attempts, events, failure.json, the restart decision
verdict_file   control/verdict-<job>: the exit code that the scheduler's script reads
fingerprint    what all nodes and all attempts of a run must have in common
run_dir_nonce  whether all nodes see the same run directory
"""
