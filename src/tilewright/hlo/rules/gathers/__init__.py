"""Rules about gathers."""
