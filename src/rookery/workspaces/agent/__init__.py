"""The workspace agent: the HTTP server that runs inside a workspace and acts for it (files, processes, context, git).

It is shipped as one zipapp and runs on the workspace's own Python, 3.9 or newer: import only the standard library and
this package, and use no syntax that 3.9 cannot run. Of chats it knows only two opaque ids in headers.
Start programs only through `process/children.py`. The agent waits for every child itself, because as the first process
of a sandbox it inherits all orphans, and a second waiter for a child would lose its exit code.

Start reading at `server/connections.py` (a request from socket to response). Each module adds its routes in
`register(router, agent)`.
"""
