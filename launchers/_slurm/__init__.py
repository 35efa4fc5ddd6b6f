"""The parts of the Slurm launcher: render, submit, query, and map Slurm's states to ours.

absent_variables   variables of the shell that the job will not have
batch_script       the batch script, rendered by submitit
foreign_options    `--sbatch-arg` and `--srun-arg`: options that have none here
generic_resources  GPUs, and what the site has beside them
job_signal         the signal before a time limit: ours, or the site's
node_checks        every node sees the run directory, and has the GPUs of its ranks
sbatch_submission  `sbatch --test-only`, then sbatch; scancel's result
script_values      the form of each value in the script
setup_lines        the lines of --setup, read by bash before the queue
slurm_client       run one command of Slurm, with a time-out and a filtered environment
slurm_memory       jobs that were out of memory, and the --mem of the next start
slurm_option_rows  the options as --help shows them
slurm_options      their values and checks
slurm_output       the output files of a job, read while they grow
slurm_queries      the state of a job by squeue, scontrol and sacct
slurm_reasons      Slurm's states and reasons, explained
slurm_state        a JobState from Slurm's answer and the run's records
uninterrupted      Ctrl-C while sbatch has not answered
"""
