"""TODO: device."""
