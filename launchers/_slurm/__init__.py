"""The Slurm launcher's parts; `launchers/slurm.py` puts them together."""
