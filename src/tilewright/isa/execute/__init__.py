"""What each instruction does, and how programs run."""
