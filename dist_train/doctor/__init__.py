"""What `dist-train doctor` concludes: facts of nodes and the links between them in, findings out; no torch.

facts            what each node says of itself, and what was measured between them
finding          one conclusion: severity, check, nodes, value, cause, hint
fact_lines       facts as lines of rank 0's output
version_rules    versions, and their differences between nodes
gpu_rules        GPUs: count, ECC, NVLink, throttling, memory in use
network_rules    interface, names, reachability, clocks
speed_rules      links and the all-reduce, against the expected
storage_rules    run directory and disks
limit_rules      /dev/shm, ulimits, cgroup limits
examine          all rules in order; equal findings of several nodes are one
findings_report  findings as text and as a record

The facts are gathered by dist_train/cluster_check, which every rank of the doctor's job runs.
"""
