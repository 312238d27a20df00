"""TODO: logs."""
