"""TODO: layout."""
