"""TODO: language."""
