"""Index maps and what they are made of: steps, digits, places, and when two are the same bytes."""
