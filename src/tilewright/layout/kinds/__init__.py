"""The kinds of layouts: tiled, lanes, paged, sharded; presets, and the plan of an NPU's local memory."""
