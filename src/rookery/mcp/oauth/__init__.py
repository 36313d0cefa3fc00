"""OAuth at MCP servers: discovery, registration of this client, the login flow, refresh, step-up and revocation."""
