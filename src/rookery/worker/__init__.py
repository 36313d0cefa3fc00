"""Finds runnable chats and drives them: acquisition, runners, generation steps, and the buffer of their live parts.

Every commit goes through `store.machine` under a fence, so that stale work can never land. Start with `parts.py` for
what clients see live.
"""
