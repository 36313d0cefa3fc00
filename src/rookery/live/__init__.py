"""Live parts of running steps: the part buffer, its feeds, and how deltas merge."""
