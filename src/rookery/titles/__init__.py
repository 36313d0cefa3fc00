"""Short texts about a chat that a model writes: titles, turn labels, summaries."""
