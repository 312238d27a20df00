"""Other notations: numpy strides, CuTe, MLIR linalg.pack, oneDNN tags."""
