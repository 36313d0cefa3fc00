"""Commands of a workspace: start, output, signals, the read-only view."""
