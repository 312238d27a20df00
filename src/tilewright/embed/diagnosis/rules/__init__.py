"""TODO: rules."""
