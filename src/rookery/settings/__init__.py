"""The start settings of a process: their table, their values, and where each comes from."""
