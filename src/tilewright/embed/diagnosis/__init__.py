"""Bottlenecks found in counters, and compiler errors explained."""
