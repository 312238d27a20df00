"""A program as the rewrites see it, read from MLIR and written back."""
