"""What talks to a person before (and after) the job runs: one module per verb; no torch."""
