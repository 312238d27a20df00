"""Attacks that take minutes: scripts, not collected by pytest."""
