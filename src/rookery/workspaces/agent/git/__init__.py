"""The state of git repositories in a workspace."""
