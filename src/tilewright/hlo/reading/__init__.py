"""Programs from every form they come in: dumps, StableHLO, binaries, folders, Python functions."""
