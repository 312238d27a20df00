"""Two programs, or two builds of one, compared: rows of reports, kernels of steps."""
