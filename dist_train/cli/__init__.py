"""The command line `dist-train`; it loads no torch. Each sub-package imports only those before it.

console_script  the first code: Ctrl-C is 130 while the rest is imported
main     finds the verb, imports only its module, turns errors into text and exit codes
output   tables and `--json`
run      a run on disk and its job: find it, query its state, read its records and checkpoints
live     how a running job is displayed, and followed to its end
options  what verbs share: types of values, common options, --help, shell completion
launch   from the command line of `launch` to a submitted job
verbs    one module per verb, with its COMMAND
starter  the files that `init` writes
"""
