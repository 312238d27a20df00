"""A program as tables in memory and steps on the machine."""
