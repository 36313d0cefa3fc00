"""Workspaces, the environments of tools: templates, operations, drivers, and connections to workspace agents.

The server runs no commands itself. The workspace agent (`agent/`), a program inside of the workspace, runs them. Its
responses are untrusted. Each start of a workspace has a number, its boot; rows, headers and JSON call it `generation`.
Start reading at `drivers/driver_interface.py`, the interface to the processes of workspaces.
"""
