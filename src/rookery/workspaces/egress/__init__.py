"""The way out of workspaces whose network is `hosts` or `public`: a socket for each, and behind it a proxy.

What comes through the socket was written by code in a workspace; nothing of it is trusted. May import `guard`, `log`
and the launcher's records; knows no database. Start with `doors` (who serves which socket), then `proxy` (one
connection).
"""
