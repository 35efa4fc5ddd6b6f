"""The per-node process: it forms an attempt with the other nodes, runs this node's ranks, reports their end.

Sub-packages, each importing only those above it (the modules below wire them):

failures      what a failure is: class, root cause, hints, the restart rule
coordination  how nodes form an attempt and agree on its end: coordinator, server, client
warm_parent   ranks by fork from one process that has imported torch
workers       this node's ranks: start, output, graceful stop, watchdog
records       agent 0's records: lease, events, failure.json, verdict
platform      what differs between local machines, Slurm and Kubernetes

main          run one agent: settings, run directory, node, exit
become_agent  import torch while the command line plans, then be its agents
node          Node: client, attempts, exit of one node
node_zero     NodeZero: what node 0 runs in addition
command_line  read the settings from argv and environment
settings      Settings: the settings of one agent, plain data
descriptor_limit  node 0's limit of open files
timeouts      how long anything may take before it counts as lost
"""
