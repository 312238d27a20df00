"""A batch of ids as the buffers the SparseCores read; checks and counts of batches."""
