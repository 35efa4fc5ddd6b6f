"""What every rank of `dist-train doctor` runs: it gathers facts, and concludes nothing.

__main__          a rank: facts of its node, then what is measured between ranks
node_check        the first rank of each node: facts, files and connections, without torch
node_facts        all facts of this node
gpu_state         GPUs by NVML: ECC, NVLink, clocks, memory in use
network_state     interfaces, the one that the ranks use, InfiniBand
rank_limits       ulimits, cgroup limits, /dev/shm
disk_state        room and latency of a folder
node_listener     answers the other nodes: its clock, and files that it writes for them
peer_probe        connects to another node: round trip, clock, files of node 0
rank_speed        links and the all-reduce, by torch
"""
