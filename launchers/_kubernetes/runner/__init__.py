"""TorchX: its Runner, our Scheduler, what they submit, read and remove."""
