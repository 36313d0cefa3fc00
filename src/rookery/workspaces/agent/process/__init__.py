"""Processes of a workspace: starts, output, signals, and the read-only view."""
