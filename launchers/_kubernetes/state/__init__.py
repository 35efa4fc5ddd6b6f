"""What a run is doing: pods, conditions and events, in words and exit codes."""
