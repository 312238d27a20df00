"""TODO: host."""
