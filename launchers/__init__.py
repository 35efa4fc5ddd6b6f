"""Launchers: each module here is one launcher; none loads torch."""
