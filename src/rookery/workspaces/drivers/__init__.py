"""Drivers, which start and stop workspaces: `local` (bubblewrap on this machine) and `ssh` (another machine).

`driver_interface.py` is the interface. A driver identifies a workspace by its id, boot and token. It knows nothing of
rows, owners or chats, and does not import the database.
"""
