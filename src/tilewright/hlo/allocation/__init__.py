"""A TPU allocator's message about memory that is full: read, its padded arrays explained, and what makes it fit."""
