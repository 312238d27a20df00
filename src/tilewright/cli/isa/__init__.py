"""TODO: isa."""
