"""TODO: planning."""
