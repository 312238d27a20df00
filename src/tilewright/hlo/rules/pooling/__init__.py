"""Rules about pooling."""
