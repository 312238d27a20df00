"""TODO: rewriting."""
