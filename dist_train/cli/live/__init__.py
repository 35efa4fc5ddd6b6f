"""The live view of a command that follows a job: output scrolls, a panel stays below it.

display_mode     which of live, plain and none is used, and why
live_view        the view as a context manager around whatever follows a job
screen           the terminal: prints the output of the command and its children, draws the panel below it
run_snapshot     reads the state of a run from its records, once a second
panel            a snapshot as lines of text
suspend          Ctrl-Z removes the panel, and it is drawn again afterwards
detached_output  what a detached local run prints, within the limit of logs
follow_job       waits for the end of a job, and reports it
status_watch     `status --watch`
"""
