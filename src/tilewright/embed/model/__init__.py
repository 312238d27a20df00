"""TODO: model."""
