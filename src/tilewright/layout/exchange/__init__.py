"""Doors to other array libraries: JAX's layouts and programs, strided arrays of any library."""
