"""TODO: embed."""
