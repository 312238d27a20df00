"""The movement report: rows, runs, peaks, measured time, comparisons, and their faces."""
