"""What ranks print, as text and as files.

bounded_log    a log file within a limit, also on a full disk
output_stream  a rank's output as lines: progress bars, long lines, lines without an end
log_parts      the files of a log
shorten_text   long texts cut in the middle
"""
