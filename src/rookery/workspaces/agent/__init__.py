"""The workspace agent: the HTTP server that runs inside a workspace and acts for it (files, processes, context, git).

It is shipped as one zipapp and runs on the workspace's own Python, 3.9 or newer: import the standard library and this
package, nothing else, and write nothing that 3.9 cannot run. It knows nothing of chats but two opaque ids in headers.
A program is started through `children.py` only: the agent waits for every child by itself, because as the first process
of a sandbox it inherits all orphans, and two who wait for one child would lose its exit code.

Start reading at `server.py` (a request from socket to answer); a module adds its routes in `register(router, agent)`.
"""
