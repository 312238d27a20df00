"""Pallas kernels of a program checked: what they hold, what they move, how long they take, and what would be better."""
