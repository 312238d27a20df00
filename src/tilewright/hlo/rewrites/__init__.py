"""The rewrites, by family, and the pipeline that runs them."""
