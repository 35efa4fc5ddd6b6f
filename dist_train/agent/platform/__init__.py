"""What differs between local machines, Slurm and Kubernetes; nothing else of the agent names a scheduler.

base_platform        Platform: the interface, with defaults that suit any cluster
choose_platform      platform_of(launcher): the Platform of a launcher's name
local_platform       the launcher runs on this machine and sees the agents' exit codes itself
slurm_platform       one agent per task of a job step; jobs submitted by hand with sbatch
kubernetes_platform  one agent per pod, wired from the modules below
agent_exit           AgentExit: how an agent ends, and with which exit code
manual_submission    job.json of a job that no launcher recorded
pod_run_dir          agent 0 creates the run directory, the other pods wait for it
pod_lease            the run's lease between pods with the same host name and pid
pod_submissions      which submitted object a pod belongs to, and whether that has ended
termination_message  the record of the end that Kubernetes shows of a container
"""
