"""Live parts of running steps: the part buffer, its feeds, and the merging of deltas."""
