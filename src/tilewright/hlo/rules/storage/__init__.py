"""Rules about storage."""
