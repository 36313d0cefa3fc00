"""The client of MCP servers: guarded connections, lists of tools, calls and their results.

The package stores nothing. The official `mcp` package is imported when the first server is used, never before. Start
with `connection_pool` (used by turns) and `connection` (one server).
"""
