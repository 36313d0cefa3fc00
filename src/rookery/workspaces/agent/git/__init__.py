"""Git repositories of a workspace: their state and their changes."""
