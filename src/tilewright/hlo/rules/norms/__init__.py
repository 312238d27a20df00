"""Rules about norms."""
