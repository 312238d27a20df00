"""The machine's state: storages, segments, caches, the clock, processing elements and their chip."""
