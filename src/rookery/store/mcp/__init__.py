"""MCP servers, their last known lists of tools, and the logins of users at them."""
