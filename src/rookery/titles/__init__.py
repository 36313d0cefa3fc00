"""Short texts about chats, written by a model: titles, turn labels and summaries."""
