"""The pure rules of MCP servers: their settings, the names of their tools, and the search over deferred tools.

No module does I/O. `rookery.mcp` connects to the servers, and `rookery.tools.mcp_tools` offers their tools to a step.
"""
