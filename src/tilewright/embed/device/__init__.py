"""Lookup and update on the SparseCores, as pure functions of jax."""
