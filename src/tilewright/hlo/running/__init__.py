"""JAX functions with the same meaning whose programs are rewritten."""
