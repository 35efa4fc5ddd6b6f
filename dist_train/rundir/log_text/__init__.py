"""What ranks print, as text and as files.

output_stream  a rank's output as lines: progress bars, long lines, lines without an end
log_parts      the files of a rank's log
shorten_text   long texts cut in the middle
"""
