"""The MCP servers that files of the workspace configure."""
