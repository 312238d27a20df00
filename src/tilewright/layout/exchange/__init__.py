"""Exchange with JAX: what it says of an array's memory, its formats, and moves inside its programs."""
