"""How long operations take on a chip: counted work, constants in the chip's TOML file."""
