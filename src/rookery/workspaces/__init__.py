"""Places where tools run: templates, the drivers that bring a workspace up, and the way to the agent inside.

The server never runs a tool's command itself; it talks to the workspace agent (`agent/`), which runs inside and
imports nothing but the standard library. What an agent answers is untrusted input. Start reading at
`drivers/protocol.py`, the contract between a workspace's row and the process behind it.
"""
