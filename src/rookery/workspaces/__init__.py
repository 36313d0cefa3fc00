"""Workspaces, where tools run: templates, operations, drivers, and the connection to the agent inside.

The server never runs a tool's command itself. It talks to the workspace agent (`agent/`), which runs inside the
workspace and imports only the standard library. Responses of an agent are untrusted input. Start reading at
`drivers/protocol.py`, the contract between a workspace's row and the process behind it.
A workspace's start count is its boot; rows, headers and JSON call it `generation`.
"""
