"""numba kernels, and the records by which they are told what to work on."""
