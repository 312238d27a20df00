"""TODO: study."""
