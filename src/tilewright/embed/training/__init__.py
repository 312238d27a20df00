"""Whole training steps, and the loop that feeds them."""
