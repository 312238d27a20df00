"""TODO: multiply."""
