"""What the rewrites are made of: their base class, the maker of operations, monoids, sinking moves."""
