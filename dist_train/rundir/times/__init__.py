"""Where the time of a run went: every second of every attempt belongs to one part; no torch.

time_parts       the parts, by name, and which of them are a step's
clock_file       attempts/<k>/time-rank-0: what a rank's clock writes and others read
span_clock       the clock of this process: which part the time counts for now
attempt_history  the attempts of a run as its events tell of them
account_time     the sums of the parts, from history and clock files
read_times       both, from a run directory
time_text        the sums as text
"""
