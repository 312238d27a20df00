"""Pictures of layouts: arrays, memories, comparisons, plans; as SVG and in the terminal."""
