"""Plans for pods: limits counted by partition in constant memory, over one process or many."""
