"""The rewrites, one file each, and the pipeline that runs them."""
