"""TODO: chip."""
