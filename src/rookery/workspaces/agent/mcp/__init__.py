"""MCP servers that the workspace itself configures."""
