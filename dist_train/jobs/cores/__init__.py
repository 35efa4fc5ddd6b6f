"""Which cores a rank gets: read from the kernel, divided by a pure function.

cpu_topology   the cores that this process may use: SMT siblings and NUMA nodes; the CPUs near a GPU
place_ranks    cores in, cores of each local rank out
place_here     the same for the ranks of this machine; refuses what does not fit
"""
