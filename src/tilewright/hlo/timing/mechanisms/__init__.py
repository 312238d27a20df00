"""What an operation costs by itself: one mechanism a file, from the tiles of its arrays and a chip's constants."""
