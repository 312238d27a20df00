"""Rules about quantisation."""
