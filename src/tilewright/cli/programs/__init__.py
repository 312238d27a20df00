"""TODO: programs."""
