"""Words: how an element gets its address, and what a layout is."""
