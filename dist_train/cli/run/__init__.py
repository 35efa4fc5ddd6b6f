"""A run on disk and its job.

find_run            a run by name, directory or handle; job.json
run_owner           whose run it is
job_state           the state of a job, queried from its launcher
run_summary         attempt, checkpoint, metrics and failure from the run's records
run_filter          which runs `list` shows
run_status          both together: what `status` and `list` show
choose_checkpoint   the checkpoint that arguments mean
find_config         the config that an argument means: a file, or a run's
estimate_process    dist_train.estimate in a process of its own: it loads torch
checkpoint_process  dist_train.checkpoint in a process of its own: it loads torch
resume_lock         one `resume` of a run at a time
bundled_example     examples/digits.yaml of the installed package
drill_run           a short training for `drill`, undisturbed or with a killed rank
"""
