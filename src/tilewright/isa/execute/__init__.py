"""TODO: execute."""
