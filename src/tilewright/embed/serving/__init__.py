"""Tables as a service reads them: quantised rows in one memory-mapped file, and its readers."""
