"""What brings workspaces up and down: `local` (bubblewrap on this machine) and `ssh` (another machine).

`protocol.py` is the contract. A driver knows a workspace by its id, generation and token, never its row, its owner
or its chats; it may import `workspaces/agent_bundle.py` for the agent, and nothing of the database.
"""
