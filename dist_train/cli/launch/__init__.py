"""From the command line of `launch` to a submitted job; in the order of their use.

launch_options    the options, in the groups of --help
arguments         parse the command line
find_target       the config, script or module
device_choice     devices and GPUs of this machine
local_rank_flag   --local_rank for scripts of torch.distributed.launch
rank_environment  environment variables of the ranks
rank_cores        refuse a `--bind` that cannot fit
shown_ranks       --show-ranks: whose stdout the terminal shows
profile_option    --profile, whose value may be left out
profiled_ranks    refuse ranks for --profile that the job has not
strategy_check    refuse a strategy that does not fit the ranks
log_limit_notice  logs that may grow beyond their disk
launcher_options  the launcher's own options
build_job         all of it together: a validated JobSpec
prepare_run       the run directory, its config and plan
submit_job        submit the plan or print it; then the handle or the live view
doctor_job        the short job of `doctor`: its options, its launch, the facts in its output
"""
