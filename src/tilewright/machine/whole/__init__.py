"""Any program on a target: the matrix unit, a chip with a time model, an NPU with lanes."""
