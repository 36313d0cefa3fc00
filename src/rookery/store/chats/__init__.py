"""Reads and metadata of chats, messages and files. Transitions are in `machine`."""
