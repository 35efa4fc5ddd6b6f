"""Parts of launchers/kubernetes.py; each sub-package imports only those above it.

manifest         from options to the objects that are submitted; needs no cluster
api              client of the API server
state            the job's objects as a JobState with exit code; the records in the run directory
runner           TorchX's Runner and schedulers: submit, status, logs, cancel
follow           `launch` and `logs`: log lines and state changes until the job ends
kubernetes_option_rows  the options as --help shows them
stderr_messages  notices to a person, on stderr
"""
