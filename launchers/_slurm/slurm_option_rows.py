"""Options of the Slurm launcher as --help shows them; slurm_options has their values and checks."""

from __future__ import annotations

from dist_train.jobs.launcher import OptionRow

OPTION_ROWS: dict[str, OptionRow] = {
    "partition": OptionRow("Partition.", flags=("-p", "--partition")),
    "account": OptionRow("Account.", flags=("-A", "--account")),
    "qos": OptionRow("Quality of service.", flags=("-q", "--qos")),
    "constraint": OptionRow("Features that the nodes must have."),
    "exclude": OptionRow("Nodes to keep away from."),
    "reservation": OptionRow("Reservation."),
    "clusters": OptionRow("Cluster of a multi-cluster site.", flags=("-M", "--clusters")),
    "gpu_type": OptionRow("Type of GPU, as the site calls it (a100)."),
    "gpu_request": OptionRow(
        "How the site wants GPUs asked for; none: not at all.  [default: gpus-per-node]",
        metavar="gpus-per-node|gres|none",
    ),
    "requeue": OptionRow(
        "Whether a preempted or time-limited job goes on by itself; site: as the site has it.  "
        "[default: yes]",
        metavar="yes|no|site",
    ),
    "sbatch_arg": OptionRow(
        "Any other option of sbatch: nodelist=n1, exclusive, mail-type=END.  (repeatable)", metavar="K[=V]"
    ),
    "srun_arg": OptionRow(
        "Any other option of srun: container-image=IMAGE, environment=NAME, mpi=pmix, "
        "cpu-bind=none.  (repeatable)",
        metavar="K[=V]",
    ),
    "setup": OptionRow("A line of shell before the step: 'module load cuda'.  (repeatable)", metavar="LINE"),
    "exec_prefix": OptionRow("What runs the agent: 'apptainer exec --nv image.sif'.", metavar="WORDS"),
    "python": OptionRow("Python on the nodes.  [default: this one's absolute path]"),
}
