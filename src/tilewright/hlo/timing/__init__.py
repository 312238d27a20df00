"""How long operations take on a chip: one file a mechanism, constants in the chip's TOML file."""
