"""Layouts in other notations, both ways: numpy strides, CuTe, linalg.pack, oneDNN tags."""
