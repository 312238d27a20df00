"""The language: instructions, programs, configuration, counters and errors."""
