"""The start settings of a process: their table, their values, and the source of each value."""
