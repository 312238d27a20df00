"""Layouts in words: how one element gets its address, and the facts of the whole."""
