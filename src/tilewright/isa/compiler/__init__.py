"""A model's program as programs of this machine, run whole."""
