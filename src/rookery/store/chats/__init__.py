"""Chats, their messages and files: reads and metadata. Transitions are in `machine`."""
