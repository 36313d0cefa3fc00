"""The workspace agent: the HTTP server inside a workspace, for its files, processes, context and git repositories.

It is shipped as one zipapp and runs on the Python of the workspace, 3.9 or newer. It imports only the standard library
and this package, and uses no newer syntax. It knows chats only by the opaque ids in request headers. Start programs
only through `process/children.py`. As the first process of a sandbox, the agent inherits all orphans and waits for
every child. If other code waited for a child as well, one of them would not get the exit code.

Start reading at `server/connections.py` (the path of a request). Each module adds its routes in `register`.
"""
