"""The run directory: one record per file, one writer per file; no torch.

directory         `RunDir`: the path of every record
records           write JSON atomically, append JSON lines, read both
events            events.jsonl: what happened to the run
metrics_file      metrics.jsonl and its hash
failure, result   failure.json and result.json
device_record     attempts/<k>/devices.json: the GPU of each rank
committed_steps   steps of the committed checkpoints
remote_checkpoints  checkpoints/remote.json: the URL of a run's checkpoints, and their steps
this_machine      which machine this is: for whom a pid means something
file_age          how old a file is, by its file system's clock
stop_file         one node's stop flag and progress slots, shared by its agent and its ranks
requests/         what commands ask a running job's agents for
lost_node         control/lost-node-<job>: a node whose agent has ended
metric_text       a record of metrics.jsonl as a console line
attempt_lines     the agent's line at the start of an attempt, written and read
stop_text         what a stop on request has saved, as text
outcome_text      the end of a run as text: the failure block, the result's table
format_amounts    bytes and durations as text
cpu_list          CPU numbers as text: `0-3,8`, and what `--bind` says
display_number    attempts and epochs as people count them, from 1
name_ranks        ranks as text: `ranks 0-2,5`
log_text/         what ranks print, as text and as files
eta               the remaining time of a run
times/            where the time of a run went
"""

from __future__ import annotations

from dist_train.rundir.directory import RunDir

__all__ = ["RunDir"]
