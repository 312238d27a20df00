"""Rules that act: one file each, in rooms by what they teach."""
