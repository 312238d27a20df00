"""Data through index maps: packing, unpacking, moving from layout to layout, many addresses at once."""
