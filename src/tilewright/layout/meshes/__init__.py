"""Arrays over many chips: meshes, shardings and their texts, where an element lies, and how to get from one to another."""
