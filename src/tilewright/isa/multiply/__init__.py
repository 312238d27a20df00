"""Matrix products and convolutions as programs, and their counts in closed form."""
