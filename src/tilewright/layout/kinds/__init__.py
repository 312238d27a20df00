"""TODO: kinds."""
