"""TODO: diagnosis."""
