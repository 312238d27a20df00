"""XLA's layout text: read, checked, printed."""
