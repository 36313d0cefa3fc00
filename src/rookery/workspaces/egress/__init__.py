"""Network egress of workspaces whose network is `hosts` or `public`: a socket for each, with a proxy behind it.

Code in a workspace writes to the socket, so nothing that arrives is trusted. May import `guard`, `log` and the
launcher's records, and no database. Start with `sockets` (which replica serves which socket), then `proxy` (one
connection).
"""
