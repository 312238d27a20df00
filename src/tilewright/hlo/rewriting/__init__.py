"""What the rewrites are made of: their base class, moves of reshapes and transposes, monoids, carried values."""
