"""The live view of a command that follows a job: output scrolls, a panel stays at the bottom.

mode     which of live, plain and none it is, and why
screen   owns the terminal: takes what the command and its children write, draws the panel below it
sight    reads the run directory: where the run stands now
panel    a sight as lines of text
follow   the four together
"""
