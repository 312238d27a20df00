"""Rules that act, in files by family, and the catalogue of them."""
