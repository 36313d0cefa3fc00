"""Facilities of the process: clock, cache, waits, garbage collection, address guard."""
