"""The rules: one function a bottleneck."""
