"""The records of a training: figures of a step or an evaluation, from the ranks to rank 0's sinks.

metric_sums     sums and counts on the device, added up over the ranks
throughput      seconds of data and compute since the last record
straggler       seconds that a rank spends on its own, to find the slowest one
memory_use      memory of this rank, and the peak of each GPU
metric_records  puts a record together
remote_record   where checkpoints at a URL are, and which there are
step_records    begins a record at its step, sends it to the sinks at the next
"""
