"""Rules about losses."""
