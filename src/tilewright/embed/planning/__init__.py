"""Limits, buffers and memory that a log needs, before a chip is rented."""
