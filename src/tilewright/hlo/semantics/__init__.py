"""What a program says of itself, whoever asks: where its arrays live, how often operations run, dims of products."""
