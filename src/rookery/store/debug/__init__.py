"""Rows of debug records: runs, steps and attempts, and the state of recording for each chat."""
