"""Checkpoints: logical tables and slots, saved while training goes on, restored onto any topology."""
