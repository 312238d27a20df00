"""Which regions are rewritten, and whether that pays on a target."""
