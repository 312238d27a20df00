"""Proof on values: trials, references, and the TPU compiler as a judge where it is installed."""
