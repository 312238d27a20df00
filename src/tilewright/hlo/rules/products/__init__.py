"""Rules about products."""
