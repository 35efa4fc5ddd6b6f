"""From options to the objects that are submitted: pure, needs no cluster."""
