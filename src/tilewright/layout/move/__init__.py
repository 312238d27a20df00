"""Data through index maps: packed, unpacked, moved from layout to layout."""
