"""The way out of workspaces with `network = "proxy"`: a socket for each, and behind it a proxy for listed hosts.

What comes through the socket was written by code in a workspace; nothing of it is trusted. May import `guard`, `log`
and the launcher's records; knows no database. Start with `doors` (who serves which socket), then `proxy` (one
connection).
"""
