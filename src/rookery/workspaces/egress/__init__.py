"""The egress of workspaces with the network `hosts` or `public`: one socket for each workspace, and a proxy behind it.

Programs of the workspace write to the socket, so all input is untrusted. This package does not import the database.
Start with `sockets` (which replica serves a socket), then read `proxy` (one connection).
"""
