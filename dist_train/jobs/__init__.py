"""Jobs: the records and the base class that all launchers share, and what they need of this machine.

launcher              the base class Launcher; Plan, JobHandle and JobState; loading a launcher by name
spec                  JobSpec and Target: one job, as every launcher gets it
agent_command         argv and environment of an agent
run_state             the state of a run by its own records: lease and events
log_files             a run's log files by rank and attempt, also while they grow
terminal_writer       writing to the terminal without waiting for its reader
polling               how often a scheduler is queried
duration              time limits in sbatch's formats
gpus                  this machine's GPUs: NVIDIA's, or AMD's where torch is built for them
amd_gpus              AMD's, as the kernel lists them
gpu_records           one GPU, and the list of a machine's
gpu_environment       the variables that give a process certain GPUs
torch_build           whether the installed torch is built for AMD's GPUs
gpu_selection         which of them `--gpus` means
device_names          names of torch devices, and the nearest to a wrong one
machine               CPU cores and memory that this process may use
cores                 which cores each rank of a node gets (`--bind`)
cgroups               limits of this process's control groups
memory_kills          processes that the kernel killed for memory, and the limit that was reached
host_port             hosts with ports as text, IPv6 addresses in brackets; the loopback address
port_holder           the process that listens on a port
process_identity      which process a pid means
orphans               processes that a run has left behind
frozen_imports        imports without the cyclic garbage collector
parent_death_signal   a process that ends with its parent (PR_SET_PDEATHSIG); SIGCHLD not ignored
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_train.lazy_exports import lazy_exports

_PUBLIC = {
    "JobHandle": "dist_train.jobs.launcher",
    "JobSpec": "dist_train.jobs.spec",
    "JobState": "dist_train.jobs.launcher",
    "Launcher": "dist_train.jobs.launcher",
    "Plan": "dist_train.jobs.launcher",
    "Target": "dist_train.jobs.spec",
    "load_launcher": "dist_train.jobs.launcher",
}

if TYPE_CHECKING:
    from dist_train.jobs.launcher import JobHandle as JobHandle
    from dist_train.jobs.launcher import JobState as JobState
    from dist_train.jobs.launcher import Launcher as Launcher
    from dist_train.jobs.launcher import Plan as Plan
    from dist_train.jobs.launcher import load_launcher as load_launcher
    from dist_train.jobs.spec import JobSpec as JobSpec
    from dist_train.jobs.spec import Target as Target

__all__ = ["JobHandle", "JobSpec", "JobState", "Launcher", "Plan", "Target", "load_launcher"]

__getattr__, __dir__ = lazy_exports(__name__, _PUBLIC)
