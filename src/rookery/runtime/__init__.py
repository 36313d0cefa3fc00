"""Facilities of a process: clock, cache, waits, time slices, heap, replica slots, address guard."""
