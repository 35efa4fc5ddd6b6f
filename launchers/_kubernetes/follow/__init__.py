"""`launch` and `logs -f`: news and lines until the run ends."""
