"""The per-node process: it brings the nodes together, runs the ranks, and tells the truth about their end."""
