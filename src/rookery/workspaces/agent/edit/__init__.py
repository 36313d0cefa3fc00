"""Edits of files: match, replace, explain a miss, diff."""
