"""What `launch --profile` is asked for, and what its traces say; loads no torch.

profiled_steps  which steps and ranks: `10:15`, `0,3`
trace_file      where traces are in the run directory; written whole, read again
intervals       unions and differences of intervals
step_parts      a trace's steps: compute, exposed communication, data wait, stall
flop_count      floating-point operations of a trace's operators, by their shapes
device_peaks    what GPUs can do at most, from their makers' data sheets
top_operators   what took most of the time
trace_summary   all of it for one rank

The rank's side, which counts steps and writes the trace, is dist_train/agent/workers/step_profiler.py.
"""
