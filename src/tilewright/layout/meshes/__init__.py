"""Arrays over many chips: meshes, shardings, where an element lies, and how to get from one to another."""
