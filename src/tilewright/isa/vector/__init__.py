"""Elementwise work, reductions of rows and their mixtures as programs. See the README."""
