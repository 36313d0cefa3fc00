"""The client of MCP servers: guarded connections, lists of tools, calls and their results.

It stores nothing. The official `mcp` package is imported when the first server is used, never before. Start with
`connection_pool` (what a turn uses) and `connection` (one server).
"""
