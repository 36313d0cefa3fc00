"""Workspace drivers, which start and stop workspaces: `local` (bubblewrap on this machine) and `ssh` (another machine).

`protocol.py` is the contract. A driver knows a workspace by its id, boot and token, never its row, its owner or its
chats. It may import `workspaces/agent_bundle.py` for the agent, and nothing of the database.
"""
