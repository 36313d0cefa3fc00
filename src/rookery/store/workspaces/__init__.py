"""Workspaces, their templates, and the operations on them."""
