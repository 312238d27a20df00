"""Logs as batches of features, and a model in a file."""
