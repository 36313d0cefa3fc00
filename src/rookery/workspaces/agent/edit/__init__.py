"""Edits of files: search, replacement, hints for failed searches, and diffs."""
